package standin

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	for name, content := range map[string]string{
		file:                     "server: https://10.0.1.1:6443\nkube-proxy-arg: [\"v=4\"]\nnode-label: [a=b]\n",
		file + ".d/10-grid.yaml": "kube-proxy-arg+: [\"master=http://localhost:51006\"]\n",
		file + ".d/20-more.yaml": "node-label: [c=d]\nwrite-kubeconfig-mode: 644\n",
		file + ".d/30-not.txt":   "server: other\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := readConfiguration(file)
	if err != nil {
		t.Fatal(err)
	}
	const want = `["agent","--kube-proxy-arg","v=4","--kube-proxy-arg","master=http://localhost:51006",` +
		`"--node-label","c=d","--server","https://10.0.1.1:6443","--write-kubeconfig-mode","644"]`
	if got, err := c.nodeArgs("agent"); err != nil || got != want {
		t.Errorf("node-args: %s, %v", got, err)
	}
	if _, err := readConfiguration(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("without a file: %v", err)
	}
}

func TestArguments(t *testing.T) {
	got := arguments(map[string]string{"kubeconfig": "/a", "proxy-mode": "iptables"}, []string{"--kubeconfig=/b", "config-sync"})
	want := []string{"--kubeconfig=/b", "--config-sync=true", "--proxy-mode=iptables"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
