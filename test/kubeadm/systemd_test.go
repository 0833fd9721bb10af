package kubeadm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	// unitKubeconfig is where docs/systemd.md puts the wrapper's kubeconfig.
	unitKubeconfig = "/etc/application-grid/application-grid-wrapper.kubeconfig"
	unitProcess    = "/run/application-grid-wrapper.pid"
)

// installUnit puts the program on the node, as `make install` does, and the kubeconfig, which is in the operator's
// directory.
func (o *operator) installUnit(node *kubeadm.Node) {
	o.Helper()
	o.Must(node.Install(filepath.Join(shared.Programs, "application-grid-wrapper"),
		"/opt/application-grid/application-grid-wrapper"))
	o.Must(node.Install(filepath.Join(o.Directory, "application-grid-wrapper.kubeconfig"), unitKubeconfig))
}

// startUnit does what systemd would do with the shipped unit, of which there is none on these nodes: it runs the
// command line of ExecStart.
func (o *operator) startUnit(node *kubeadm.Node) {
	o.Helper()
	root := suite.Repository(o)
	unit, err := os.ReadFile(filepath.Join(root, "manifests", "systemd", "application-grid-wrapper.service"))
	o.Must(err)
	_, line, found := strings.Cut(string(unit), "\nExecStart=")
	if !found {
		o.Fatal("the unit has no ExecStart")
	}
	line, _, _ = strings.Cut(line, "\n")
	line = strings.NewReplacer("/usr/local/bin/", "/opt/application-grid/", "${CREDENTIALS_DIRECTORY}/kubeconfig",
		unitKubeconfig,
		"${NODE_NAME}", node.Name(), " $OPTIONS", "").Replace(line)
	if strings.Contains(line, "$") {
		o.Fatalf("the unit runs %q, which is not understood here", line)
	}
	_, err = node.Run(o.Context(), "setsid", "--fork", "sh", "-c", fmt.Sprintf(
		"exec >>/var/log/application-grid-wrapper.log 2>&1; mkdir -p /var/lib/application-grid-wrapper; echo $$ > %s; exec %s", unitProcess, line))
	o.Must(err)
	o.Eventually("the unit's wrapper is ready on "+node.Name(), func() error { return wrapperReady(o.Context(), node) })
}

// stopUnit ends what startUnit has started.
func (o *operator) stopUnit(node *kubeadm.Node) {
	o.Helper()
	_, err := node.Run(o.Context(), "sh", "-c",
		"kill $(cat "+unitProcess+") && while kill -0 $(cat "+unitProcess+") 2>/dev/null; do sleep 0.1; done")
	o.Must(err)
}

// wrapperReady is nil if a wrapper of the node says that it is ready.
func wrapperReady(ctx context.Context, node *kubeadm.Node) error {
	reply, err := node.Get(ctx, "http://localhost:51006/readyz")
	if err != nil {
		return err
	}
	if reply.Status != 200 {
		return fmt.Errorf("%d %s", reply.Status, reply.Body)
	}
	return nil
}
