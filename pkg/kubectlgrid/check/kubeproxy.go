package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// proxyConfig is the configuration of a kube-proxy: by flags, by a KubeProxyConfiguration, by a kubeconfig.
type proxyConfig struct {
	// server is the URL that it asks. source is where that is configured, and changed when that was last written.
	server, source string
	changed        time.Time
	// serverErr is why server is not known.
	serverErr error
	mode      string // empty for the default
}

// unknownMode is a mode that could not be read.
const unknownMode = "unknown"

func (p *proxyConfig) asks() string { return fmt.Sprintf("it asks %s (%s)", p.server, p.source) }

// proxyConfigOf reads the configuration of a kube-proxy by its own rules: --master overrides a kubeconfig, and a
// configuration file overrides every other flag.
func (c *Cluster) proxyConfigOf(ctx context.Context, namespace string, pod *corev1.PodSpec,
	container *corev1.Container) *proxyConfig {
	config := &proxyConfig{}
	words := commandLine(container)
	read := func(name string, parse func(text []byte) error) error {
		text, doc, err := c.file(ctx, namespace, pod, container.VolumeMounts, name)
		if err != nil {
			return err
		}
		if doc.changed.After(config.changed) {
			config.changed = doc.changed
		}
		if err := parse([]byte(text)); err != nil {
			return fmt.Errorf("%s: %w", doc.about, err)
		}
		config.source = fmt.Sprintf("%s in %s", name, doc.about)
		return nil
	}
	master, _ := flagOf(words, "master", "")
	kubeconfig, _ := flagOf(words, "kubeconfig", "")
	config.mode, _ = flagOf(words, "proxy-mode", "")
	if file, given := flagOf(words, "config", ""); given {
		var parsed struct {
			Mode             string `json:"mode"`
			ClientConnection struct {
				Kubeconfig string `json:"kubeconfig"`
			} `json:"clientConnection"`
		}
		if err := read(file, func(text []byte) error { return yaml.Unmarshal(text, &parsed) }); err != nil {
			parsed.Mode, config.serverErr = unknownMode, fmt.Errorf("--config=%s: %w", file, err)
		}
		config.mode, kubeconfig = parsed.Mode, parsed.ClientConnection.Kubeconfig
	}
	cluster := &clientcmdapi.Cluster{}
	switch {
	case config.serverErr != nil:
	case kubeconfig != "":
		err := read(kubeconfig, func(text []byte) (err error) {
			cluster, err = clusterOf(text)
			return err
		})
		if err != nil {
			config.serverErr = fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
		}
	case master == "":
		config.source = "its ServiceAccount, for want of a kubeconfig"
		cluster.Server = cmp.Or(inClusterServer(envOf(container)), "https://kubernetes.default.svc")
	}
	if master != "" {
		config.source = "--master"
		if whole, err := url.Parse(master); err == nil && whole.Host != "" { // whatever the kubeconfig has
			config.serverErr = nil
		}
		cluster.Server = master
	}
	if config.serverErr == nil {
		config.server, config.serverErr = serverOf(cluster)
	}
	return config
}

// serverOf returns the URL of a server as a client of it does: without a scheme, it is that of TLS if the client has an
// authority, or verifies no certificate.
func serverOf(cluster *clientcmdapi.Cluster) (string, error) {
	server, _, err := rest.DefaultServerUrlFor(&rest.Config{Host: cluster.Server, TLSClientConfig: rest.TLSClientConfig{
		CAFile: cluster.CertificateAuthority, CAData: cluster.CertificateAuthorityData,
		Insecure: cluster.InsecureSkipTLSVerify}})
	if err != nil {
		return "", err
	}
	return server.String(), nil
}

// inClusterServer returns the server that an environment sets in place of that of the cluster; "" if it sets none.
func inClusterServer(env map[string]string) string {
	host := env["KUBERNETES_SERVICE_HOST"]
	if host == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(host, env["KUBERNETES_SERVICE_PORT"])
}

// clusterOf returns the cluster of a kubeconfig's current context.
func clusterOf(text []byte) (*clientcmdapi.Cluster, error) {
	config, err := clientcmd.Load(text)
	if err != nil {
		return &clientcmdapi.Cluster{}, fmt.Errorf("it is not a kubeconfig: %w", err)
	}
	if current := config.Contexts[config.CurrentContext]; current != nil && config.Clusters[current.Cluster] != nil {
		return config.Clusters[current.Cluster], nil
	}
	return &clientcmdapi.Cluster{}, errors.New("its current context names no cluster")
}

// leadsToWrapper reports whether a URL is that of a wrapper on the node itself, which listens on this port.
func leadsToWrapper(server string, port int32) bool {
	parsed, err := url.Parse(server)
	return err == nil && portOf(parsed.Host) == port &&
		(parsed.Hostname() == "localhost" || net.ParseIP(parsed.Hostname()).IsLoopback())
}

// url returns the URL of a wrapper for programs on its node.
func (p *pod) url() string { return fmt.Sprintf("%s://localhost:%d", p.scheme, p.port) }

// leadsToWrappers reports whether a URL is that of a wrapper on the node itself, at the port of any.
func (c *Cluster) leadsToWrappers(server string) bool {
	return leadsToWrapper(server, defaultPort) || slices.ContainsFunc(c.pods, func(p *pod) bool {
		return p.program == wrapperProgram && leadsToWrapper(server, p.port)
	})
}

// otherScheme returns a description if a URL of a wrapper has another scheme than that wrapper serves; "" if they are
// the same, or if no wrapper can be seen.
func (p *pod) otherScheme(server string) string {
	if p.Name == "" || strings.HasPrefix(server, p.scheme+":") {
		return ""
	}
	return ", and the wrapper serves " + p.scheme
}
