package check

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestProgramOf: what runs is what the command says, or else the container's name or its image.
func TestProgramOf(t *testing.T) {
	for name, test := range map[string]struct {
		container corev1.Container
		want      Program
	}{
		"kubeadm's": {corev1.Container{Name: "x", Command: []string{"/usr/local/bin/kube-proxy", "--config=/x"}},
			kubeProxyProgram},
		"a shell": {corev1.Container{Name: "x", Command: []string{"/bin/sh", "-c",
			"exec kube-proxy --master=https://10.0.0.1 1>>/var/log/kube-proxy.log"}}, kubeProxyProgram},
		"an image's own": {corev1.Container{Name: "x", Image: "reg:5000/a/application-grid-wrapper:v1@sha256:0",
			Args: []string{"--hostname=$(NODE_NAME)"}}, wrapperProgram},
		"by architecture": {
			corev1.Container{Name: "x", Image: "gke.gcr.io/kube-proxy-amd64:v1.33.0"}, kubeProxyProgram,
		},
		"by the name": {corev1.Container{Name: "node-cache", Image: "dns"}, nodeLocalProgram},
		"an argument": {corev1.Container{Name: "x", Image: "x", Command: []string{"exporter", "--of", "kube-proxy"}},
			""},
		"of a shell": {corev1.Container{Name: "x", Image: "x", Command: []string{"sh", "-c",
			"tail -f /var/log/kube-proxy"}}, ""},
		"nothing":         {corev1.Container{Name: "x", Image: "x"}, ""},
		"a similar image": {corev1.Container{Name: "x", Image: "kube-proxying:v1"}, ""},
		"SuperEdge's place": {corev1.Container{Name: "w", Command: []string{"/usr/local/bin/application-grid-wrapper",
			"--bind-address=127.0.0.1:51006"}}, wrapperProgram},
	} {
		if got := programOf(&test.container); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestFlagOf: as the programs read them, the last one counts.
func TestFlagOf(t *testing.T) {
	for line, want := range map[string]string{
		"--master=a": "a", "--master a": "a", "-master=a": "a", `--master="a"`: "a", "--master=a --master=b": "b",
		"--masters=a": "", "master=a": "", "--master": "",
	} {
		if got, given := flagOf(strings.Fields(line), "master", ""); got != want || given != (want != "") {
			t.Errorf("%s: got %q, %v", line, got, given)
		}
	}
}

// TestTakesPort: declared ports, and flags that say where a program listens; not where it asks.
func TestTakesPort(t *testing.T) {
	for line, want := range map[string]bool{
		"--bind-address=127.0.0.1:51006": true, "--listen :51006": true, "--port=51006": true,
		"--metrics-bind-address=[::1]:51006": true, "--addr=localhost:51006": true, "--addr=[::]:51006": true,
		"--master=http://localhost:51006": false, "--address=http://localhost:51006": false, "--port=5100": false,
		"--bind-address": false, "": false, "--bind-address=192.0.2.1:51006": false,
	} {
		c := corev1.Container{Args: strings.Fields(line)}
		if got := takesPort(&c, true); got != want {
			t.Errorf("%s: got %v", line, got)
		}
		if takesPort(&c, false) {
			t.Errorf("%s: a port of the pod's own network", line)
		}
	}
	// The network plugin forwards a host port from the loopback, too, unless it is one of another address.
	for hostIP, want := range map[string]bool{"": true, "0.0.0.0": true, "::": true, "127.0.0.1": true, "192.0.2.1": false} {
		c := corev1.Container{Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 51006, HostIP: hostIP}}}
		if got := takesPort(&c, false); got != want {
			t.Errorf("a host port of %q: got %t", hostIP, got)
		}
	}
}

// TestBoolFlag: as the programs read them.
func TestBoolFlag(t *testing.T) {
	for line, want := range map[string]bool{
		"": true, "--insecure": true, "--insecure=false": false, "--insecure=0": false, "--insecure=F": false,
		"--insecure false": true, "--insecure=false --insecure": true, "--insecure=1": true, "--insecure='false'": false,
	} {
		if got := boolFlag(strings.Fields(line), "insecure", true); got != want {
			t.Errorf("%s: got %t", line, got)
		}
	}
}

// TestMinor: the minor version of what distributions make of it.
func TestMinor(t *testing.T) {
	for version, want := range map[string]int{"v1.37.1": 37, "1.29.6": 29, "v1.33.5-gke.100": 33, "v1.30.0+k3s1": 30,
		"v1.28+": 28} {
		if got, ok := minor(version); !ok || got != want {
			t.Errorf("%s: got %d, %v", version, got, ok)
		}
	}
	for _, version := range []string{"", "v2.1.0", "latest", "v1", "v1.x.1"} {
		if got, ok := minor(version); ok {
			t.Errorf("%s: got %d", version, got)
		}
	}
}
