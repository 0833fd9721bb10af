package kubeadm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/test/docs/page"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/suite"
)

// TestQuickStart follows docs/quickstart.md from its second step on, with the commands for nodes that `make kubeadm`
// gives its reader, on the cluster from which TestPages has removed everything.
func TestQuickStart(t *testing.T) {
	tools, err := shared.WriteTools()
	suite.Must(t, err)
	reader := page.Open(suite.Test{T: t, Patience: operate.Patience}, "quickstart.md", "KUBECONFIG="+shared.Kubeconfig(),
		"PATH="+tools+":"+os.Getenv("PATH"))
	suite.Must(t, os.Symlink(filepath.Dir(shared.Images), filepath.Join(reader.Directory, "dist")))
	reader.Shell("kubectl delete daemonsets,services echo --ignore-not-found\nkubectl label node node0 node1 zone1-")
	for _, heading := range []string{
		"## 2. Label the sites, and look", "## 3. Make the images", "## 4. Install", "## 5. Run something in each site",
		"## 6. Prove it", "## 7. Pull the cable",
	} {
		for _, block := range reader.Blocks(heading) {
			var lines []string
			for line := range strings.Lines(block.Script) {
				if !strings.HasPrefix(line, "make ") { // make test-kubeadm has made the images
					lines = append(lines, line)
				}
			}
			output := reader.Shell(strings.Join(lines, ""))
			if strings.HasPrefix(heading, "## 6") && !strings.Contains(output, "No connection left its site.") {
				t.Errorf("it prints\n%s", output)
			}
			if strings.HasPrefix(heading, "## 7") && strings.Count(output, "echo-east-") != 5 {
				t.Errorf("while the link is down node0 is answered by\n%s", output)
			}
		}
	}
}
