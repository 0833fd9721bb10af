package takeover

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/pkg/program/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/docs"
	"github.com/application-grid/application-grid/test/suite"
)

// patience is for what controllers do on a busy machine.
var patience = await.Patience{Within: 2 * time.Minute, Between: 100 * time.Millisecond}

// operator is who follows a page, in a directory with the repository's manifests.
type operator struct {
	suite.Test
	ctx       context.Context
	client    kubernetes.Interface
	directory string
	path      string // a directory with kubectl and its plugin
	name      string // the page's
	page      string
}

// newOperator starts a cluster in which nothing of this project is installed.
func newOperator(t *testing.T, page string, options cluster.Options) *operator {
	t.Helper()
	root := suite.Repository(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", page))
	suite.Must(t, err)
	c := suite.Start(t, options)
	o := &operator{Test: suite.Test{T: t, Cluster: c, Patience: patience}, ctx: t.Context(), client: c.Client(),
		directory: t.TempDir(), path: suite.Path(t), name: page, page: string(text)}
	o.Must(os.CopyFS(filepath.Join(o.directory, "manifests"), os.DirFS(filepath.Join(root, "manifests"))))
	// The embedded cluster's programs have their roles from the start.
	for _, name := range []string{"application-grid-controller", "application-grid-wrapper",
		"statefulset-grid-daemon"} {
		o.shell("kubectl delete -k manifests/" + name + " --ignore-not-found")
	}
	return o
}

// section is the text of the page from this heading to the next of its level.
func (o *operator) section(heading string) string {
	o.Helper()
	_, text, found := strings.Cut(o.page, "\n"+heading+"\n")
	if !found {
		o.Fatalf("%s has no %q", o.name, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// follow runs all commands below a heading in their order, as they are on the page. Before the first it writes the
// files that the page shows there. after is called after the commands that have its key in them.
func (o *operator) follow(heading string, after map[string]func()) {
	o.Helper()
	section := o.section(heading)
	for _, match := range regexp.MustCompile("(?s)\n( *)```yaml\n *# (\\S+)\n(.*?)\n *```").FindAllStringSubmatch(section, -1) {
		file := filepath.Join(o.directory, match[2])
		o.Must(os.MkdirAll(filepath.Dir(file), 0o755))
		o.Must(os.WriteFile(file, []byte(strings.ReplaceAll("\n"+match[3], "\n"+match[1], "\n")), 0o600))
	}
	blocks, err := docs.BlocksOf(o.name, section)
	o.Must(err)
	if len(blocks) == 0 {
		o.Fatalf("%s has no commands below %q", o.name, heading)
	}
	seen := map[string]bool{}
	for _, block := range blocks {
		if block.NoRun != "" {
			o.Logf("not run: %s\n%s", block.NoRun, block.Script)
			continue
		}
		o.shell(block.Script)
		for part, do := range after {
			if strings.Contains(block.Script, part) && !seen[part] {
				seen[part] = true
				do()
			}
		}
	}
	for part := range after {
		if !seen[part] {
			o.Fatalf("%s has no commands with %q below %q", o.name, part, heading)
		}
	}
}

// shell runs commands, and fails if one fails.
func (o *operator) shell(script string) string {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.ctx, patience.Within)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	command.Dir = o.directory
	command.Env = append(os.Environ(), "KUBECONFIG="+o.Cluster.Kubeconfig(), "HOME="+o.Cluster.Dir(),
		"PATH="+o.path+":"+os.Getenv("PATH"))
	begin := time.Now()
	output, err := command.CombinedOutput()
	if err != nil {
		o.Fatalf("%v:\n%s\n%s", err, script, output)
	}
	o.Logf("%.1f s\n%s\n%s", time.Since(begin).Seconds(), strings.TrimSpace(script), output)
	return string(output)
}

// serveLite listens on a node where its lite-apiserver would, and passes connections on to kube-apiserver.
func (o *operator) serveLite(node *cluster.Node) {
	o.Helper()
	_, err := node.Run(o.ctx, "ip", "address", "add", cluster.LiteAddress+"/32", "dev", "lo")
	o.Must(err)
	listener, err := node.Listen(o.ctx, cluster.LiteAddress+":51003")
	o.Must(err)
	o.Cleanup(func() { _ = listener.Close() })
	config := o.Cluster.RESTConfig()
	server := strings.TrimPrefix(config.Host, "https://")
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go func() {
				defer client.Close()
				upstream, err := config.Dial(context.Background(), "tcp", server)
				if err != nil {
					return
				}
				defer upstream.Close()
				relay(client, upstream)
			}()
		}
	}()
}

// relay copies both ways until one side ends.
func relay(a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // the end of a connection is no error here
			done <- struct{}{}
		}()
	}
	<-done
}

// askWrapper has the node's kube-proxy ask the wrapper, by its kubeconfig, as edgeadm's kube-proxy-edge does.
func (o *operator) askWrapper(node *cluster.Node) {
	o.Helper()
	file := filepath.Join(o.directory, "kube-proxy-"+node.Name()+".conf")
	o.Must(os.WriteFile(file, []byte(`{apiVersion: v1, kind: Config, current-context: default,
clusters: [{name: default, cluster: {server: "http://127.0.0.1:51006"}}], contexts: [{name: default, context: {cluster: default, user: ""}}]}`), 0o600))
	args := node.KubeProxy.Args()
	for i, arg := range args {
		if strings.HasPrefix(arg, "--kubeconfig=") {
			args[i] = "--kubeconfig=" + file
		}
	}
	node.KubeProxy.SetArgs(args)
	o.Must(node.KubeProxy.Restart(o.ctx))
}

// says waits until a URL on a node answers with this in it.
func (o *operator) says(node, url, part string) {
	o.Helper()
	o.Answers(o.Node(node), url, 0, part)
}
