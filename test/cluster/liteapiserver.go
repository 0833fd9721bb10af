package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/test/netns"
)

const (
	// litePort and liteHealthPort are lite-apiserver's defaults.
	litePort       = 51003
	liteHealthPort = 51009
)

// startLiteAPIServer starts our own lite-apiserver on the node.
func (c *Cluster) startLiteAPIServer(ctx context.Context, node *Node, thread *netns.Thread) error {
	if !c.options.Kubelets {
		return errors.New("a lite-apiserver needs Options.Kubelets")
	}
	kubeconfig, err := c.KubeletKubeconfig(node.Spec.Name, c.apiServerURL())
	if err != nil {
		return err
	}
	if err := c.CreateCSINode(ctx, node.Spec.Name); err != nil {
		return err
	}
	ready := func(ctx context.Context) error {
		return expectOK(ctx, newClient(node.dial(), nil), node.LiteURL()+"/readyz")
	}
	node.LiteAPIServer = c.program("lite-apiserver@"+node.Spec.Name, node.Spec.LiteAPIServer, thread, ready,
		"--kubeconfig="+kubeconfig, fmt.Sprintf("--port=%d", litePort), "--health-bind-address="+local(liteHealthPort),
		"--file-cache-path="+node.liteDir(), "--unsealed")
	return c.startStep(ctx, node.LiteAPIServer)
}

// CreateCSINode creates the CSINode of a node, as its kubelet does.
func (c *Cluster) CreateCSINode(ctx context.Context, node string) error {
	_, err := c.client.StorageV1().CSINodes().Create(ctx,
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating the CSINode of %s: %w", node, err)
	}
	return nil
}

func (n *Node) liteDir() string { return filepath.Join(n.cluster.dir, "lite", n.Spec.Name) }

// LiteURL is where the node's lite-apiserver says how it is, in the node's namespace.
func (n *Node) LiteURL() string { return "http://" + local(liteHealthPort) }

// KubeletConfig is the client configuration that the node's lite-apiserver has written for its kubelet.
func (n *Node) KubeletConfig() (*rest.Config, error) {
	config, err := ReadKubeletConfig(n.liteDir())
	if err == nil {
		config.Dial = n.dial()
	}
	return config, err
}

// LiteHas is nil if the node's lite-apiserver has all these names on its disk.
func (n *Node) LiteHas(names ...string) error {
	state, problems := store.Read(filepath.Join(n.liteDir(), "store"), nil)
	for _, name := range names {
		found := false
		for key := range state {
			found = found || strings.Contains(key, name)
		}
		if !found {
			return fmt.Errorf("%s is not on the disk of %s: %w", name, n.Name(), errors.Join(problems...))
		}
	}
	return nil
}

// ReadKubeletConfig reads the client configuration that a lite-apiserver has written for its kubelet to its directory:
// with the node's certificate, and in protobuf.
func ReadKubeletConfig(dir string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "kubelet.conf"))
	if err != nil {
		return nil, err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	config.QPS = -1
	return config, nil
}
