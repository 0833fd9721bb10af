package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Credentials is the kubeconfig with a component's client certificate, "kubelet" or "kubeproxy", which a server of k3s
// gives to its agents.
func Credentials(component string) string {
	return filepath.Join(agentDir, component+".credentials")
}

// writeKubeconfig writes the kubeconfig of a component, which leads to this node's way to the API servers.
func (a *agent) writeKubeconfig(component string) (string, error) {
	config, err := clientcmd.LoadFromFile(Credentials(component))
	if err != nil {
		return "", err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = a.server
	}
	file := filepath.Join(agentDir, component+".kubeconfig")
	return file, clientcmd.WriteToFile(*config, file)
}

// client is one with the kubelet's rights.
func (a *agent) client() (kubernetes.Interface, error) {
	file, err := a.writeKubeconfig("kubelet")
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, err
	}
	config.Timeout = 10 * time.Second
	return kubernetes.NewForConfig(config)
}

// awaitServer waits until a server is ready, as long as it takes.
func (a *agent) awaitServer(ctx context.Context) {
	for {
		client, err := a.client()
		if err == nil {
			err = client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		}
		if err == nil {
			return
		}
		log.Printf("waiting to retrieve agent configuration; server is not ready: %v", err)
		time.Sleep(2 * time.Second)
	}
}

// describeNode patches the labels and the annotation into the Node, once it can.
func (a *agent) describeNode(ctx context.Context) {
	client, err := a.client()
	if err != nil {
		a.ended <- err
		return
	}
	args, err := a.nodeArgs(a.command)
	if err != nil {
		a.ended <- err
		return
	}
	labels := map[string]string{}
	for _, label := range a.configuration["node-label"] {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels": labels, "annotations": map[string]string{"k3s.io/node-args": args}}})
	if err != nil {
		a.ended <- fmt.Errorf("describing the node: %w", err)
		return
	}
	for {
		_, err := client.CoreV1().Nodes().Patch(ctx, a.name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			log.Printf("annotations and labels have been set successfully on node: %s", a.name)
			return
		}
		log.Printf("failed to set annotations and labels: %v", err)
		time.Sleep(time.Second)
	}
}
