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
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// proxyConfig is the configuration of a kube-proxy: by flags, by a KubeProxyConfiguration, by a kubeconfig.
type proxyConfig struct {
	// server is the URL that it asks. source is where that is configured, and changed when that was last written.
	server, source string
	changed        time.Time
	// serverErr is why server is not known.
	serverErr error
	// mode is empty for the default. modeErr is why it is not known.
	mode    string
	modeErr error
}

// proxyConfigOf reads the configuration of a kube-proxy by its own rules: --master overrides a kubeconfig, and a
// configuration file overrides every other flag.
func (d *documents) proxyConfigOf(ctx context.Context, namespace string, pod *corev1.PodSpec,
	c *corev1.Container) proxyConfig {
	var config proxyConfig
	words := commandLine(c)
	kubeconfig, _ := flagOf(words, "kubeconfig")
	config.mode, _ = flagOf(words, "proxy-mode")
	if file, given := flagOf(words, "config"); given {
		var parsed struct {
			Mode             string `json:"mode"`
			ClientConnection struct {
				Kubeconfig string `json:"kubeconfig"`
			} `json:"clientConnection"`
		}
		text, doc, err := d.file(ctx, namespace, pod, c, file)
		if err == nil {
			config.changed = doc.changed
			if err = yaml.Unmarshal([]byte(text), &parsed); err != nil {
				err = fmt.Errorf("%s: %w", doc.about, err)
			}
		}
		if err != nil {
			err = fmt.Errorf("--config=%s: %w", file, err)
			config.modeErr, config.serverErr = err, err
		} else {
			config.mode, kubeconfig = parsed.Mode, parsed.ClientConnection.Kubeconfig
		}
	}
	if master, given := flagOf(words, "master"); given && master != "" {
		config.server, config.source, config.serverErr = master, "--master", nil
		return config
	}
	if config.serverErr != nil {
		return config
	}
	if kubeconfig == "" {
		config.source = "its ServiceAccount, for want of a kubeconfig"
		config.server = cmp.Or(inClusterServer(envOf(c)), "https://kubernetes.default.svc")
		return config
	}
	text, doc, err := d.file(ctx, namespace, pod, c, kubeconfig)
	if err == nil {
		config.source = fmt.Sprintf("%s in %s", kubeconfig, doc.about)
		if doc.changed.After(config.changed) {
			config.changed = doc.changed
		}
		config.server, err = serverOf(text)
	}
	if err != nil {
		config.serverErr = fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return config
}

// inClusterServer returns the server that an environment sets in place of that of the cluster; "" if it sets none.
func inClusterServer(env map[string]string) string {
	host := env["KUBERNETES_SERVICE_HOST"]
	if host == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(host, env["KUBERNETES_SERVICE_PORT"])
}

// serverOf returns the server of a kubeconfig's current context.
func serverOf(text string) (string, error) {
	config, err := clientcmd.Load([]byte(text))
	if err != nil {
		return "", fmt.Errorf("it is not a kubeconfig: %w", err)
	}
	if current := config.Contexts[config.CurrentContext]; current != nil && config.Clusters[current.Cluster] != nil {
		return config.Clusters[current.Cluster].Server, nil
	}
	return "", errors.New("its current context names no cluster")
}

// leadsToWrapper reports whether a URL is that of a wrapper on the node itself, which listens on this port.
func leadsToWrapper(server string, port int32) bool {
	parsed, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(parsed.Hostname())
	return (parsed.Hostname() == "localhost" || (ip != nil && ip.IsLoopback())) && portOf(parsed.Host) == port
}

// wrapperPort returns the port of a node's wrapper, which is the default one if no wrapper can be seen.
func wrapperPort(wrappers []*pod) int32 {
	if len(wrappers) == 0 {
		return defaultPort
	}
	return wrappers[0].port
}

// leadsToWrappers reports whether a kube-proxy asks for a wrapper, at the port of any, on its own node.
func (c *Cluster) leadsToWrappers(config *proxyConfig) bool {
	return config.serverErr == nil && (leadsToWrapper(config.server, defaultPort) ||
		slices.ContainsFunc(c.pods, func(p *pod) bool {
			return p.program == wrapperProgram && leadsToWrapper(config.server, p.port)
		}))
}

// otherScheme returns a description if a URL of a wrapper has another scheme than the node's wrapper serves; "" if they
// are the same, or if no wrapper can be seen.
func otherScheme(server string, wrappers []*pod) string {
	if len(wrappers) == 0 || strings.HasPrefix(server, "https:") == wrappers[0].tls {
		return ""
	}
	if wrappers[0].tls {
		return ", and the wrapper serves HTTPS (--insecure=false)"
	}
	return ", and the wrapper serves plain HTTP"
}
