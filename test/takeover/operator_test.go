package takeover

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/docs/page"
	"github.com/application-grid/application-grid/test/suite"
)

// patience is for what controllers do on a busy machine.
var patience = await.Patience{Within: 2 * time.Minute, Between: 100 * time.Millisecond}

// operator is who follows a page.
type operator struct {
	*page.Reader
	ctx    context.Context
	client kubernetes.Interface
}

// newOperator starts a cluster in which nothing of this project is installed.
func newOperator(t *testing.T, name string, options cluster.Options) *operator {
	t.Helper()
	c := suite.Start(t, options)
	test := suite.Test{T: t, Cluster: c, Patience: patience}
	o := &operator{ctx: t.Context(), client: c.Client(), Reader: page.Open(test, name,
		"KUBECONFIG="+c.Kubeconfig(), "PATH="+suite.Path(t)+":"+os.Getenv("PATH"))}
	// The embedded cluster's programs have their roles from the start.
	for _, name := range []string{"application-grid-controller", "application-grid-wrapper",
		"statefulset-grid-daemon"} {
		o.Shell("kubectl delete -k manifests/" + name + " --ignore-not-found")
	}
	return o
}

// follow runs all commands below a heading in their order, as they are on the page. Before the first it writes the
// files that the page shows there. after is called after the commands that have its key in them.
func (o *operator) follow(heading string, after map[string]func()) {
	o.Helper()
	o.WriteFiles(heading)
	seen := map[string]bool{}
	for _, block := range o.Blocks(heading) {
		if block.NoRun != "" {
			o.Logf("not run: %s\n%s", block.NoRun, block.Script)
			continue
		}
		o.Shell(block.Script)
		for part, do := range after {
			if strings.Contains(block.Script, part) && !seen[part] {
				seen[part] = true
				do()
			}
		}
	}
	for part := range after {
		if !seen[part] {
			o.Fatalf("there are no commands with %q below %q", part, heading)
		}
	}
}

// serveLite listens on a node where its lite-apiserver would, and passes connections on to kube-apiserver.
func (o *operator) serveLite(node *cluster.Node) {
	o.Helper()
	_, err := node.Run(o.ctx, "ip", "address", "add", cluster.LiteAddress+"/32", "dev", "lo")
	o.Must(err)
	relay, err := node.StandIn(o.ctx, cluster.LiteAddress+":51003")
	o.Must(err)
	o.Cleanup(relay.Close)
}

// askWrapper has the node's kube-proxy ask the wrapper, by its kubeconfig, as edgeadm's kube-proxy-edge does.
func (o *operator) askWrapper(node *cluster.Node) {
	o.Helper()
	file := filepath.Join(o.Directory, "kube-proxy-"+node.Name()+".conf")
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
