package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/application-grid/application-grid/test/netns"
)

// Corefile is manifests/coredns-edge/Corefile, with the kubeconfig that docs/coredns.md adds for headless Services; a
// test of e2e/dns compares them.
const Corefile = `.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    hosts ` + manifestHosts + ` {
       ttl 1
       reload 200ms
       no_reverse
       fallthrough
    }
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       kubeconfig ` + manifestKubeconfig + `
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . ` + manifestResolvConf + ` {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
`

// The files that the Corefile names. On a node of the embedded cluster each has its own.
const (
	manifestHosts      = "/data/edge/hosts"
	manifestKubeconfig = "/etc/coredns/wrapper.kubeconfig"
	manifestResolvConf = "/etc/resolv.conf"
)

const (
	dnsPort       = 53
	dnsReadyPort  = 8181
	dnsDaemonPort = 51007
)

// startDNS starts statefulset-grid-daemon and CoreDNS on a node that has a wrapper. CoreDNS' kubernetes plugin
// talks to the wrapper if that serves TLS; client-go would not give it CoreDNS' credentials otherwise, which it
// needs to watch namespaces.
func (c *Cluster) startDNS(ctx context.Context, node *Node, thread *netns.Thread) error {
	dir := filepath.Join(c.dir, "dns-"+node.Spec.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("creating the directory for DNS: %w", err)
	}
	node.HostsFile = filepath.Join(dir, "hosts")
	kubeconfig, err := c.dnsDaemonKubeconfig(node)
	if err != nil {
		return err
	}
	address := local(dnsDaemonPort)
	ready := func(ctx context.Context) error {
		return expectOK(ctx, newClient(node.dial(), nil), "http://"+address+"/readyz")
	}
	node.DNSDaemon = c.program("statefulset-grid-daemon@"+node.Spec.Name, c.options.DNSDaemon, thread, ready,
		"--kubeconfig="+kubeconfig, "--hostname="+node.Spec.Name, "--hostpath="+node.HostsFile,
		"--bind-address="+address)
	if err := c.startStep(ctx, node.DNSDaemon); err != nil {
		return err
	}

	server := c.apiServerURL()
	if c.options.WrapperTLS {
		server = node.WrapperURL()
	}
	if kubeconfig, err = c.credentials.writeKubeconfig("coredns-"+node.Spec.Name+".kubeconfig", RoleCoreDNS,
		server); err != nil {
		return err
	}
	// Nobody answers there: other names are not to be had, and CoreDNS must not find itself and call it a loop.
	resolvConf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolvConf, []byte("nameserver 192.0.2.1\n"), 0o600); err != nil {
		return fmt.Errorf("writing resolv.conf: %w", err)
	}
	corefile := filepath.Join(dir, "Corefile")
	// The pods' addresses are the node's here, and a pod may listen on CoreDNS' port for health.
	content := strings.NewReplacer("health {", "health 127.0.0.1:8080 {", manifestHosts, node.HostsFile,
		manifestKubeconfig, kubeconfig, manifestResolvConf, resolvConf).Replace(Corefile)
	if err := os.WriteFile(corefile, []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing the Corefile: %w", err)
	}
	ready = func(ctx context.Context) error {
		return expectOK(ctx, newClient(node.dial(), nil), "http://"+local(dnsReadyPort)+"/ready")
	}
	node.CoreDNS = c.component("coredns@"+node.Spec.Name, thread, ready, "--conf="+corefile)
	return c.startStep(ctx, node.CoreDNS)
}

// dnsDaemonKubeconfig writes the kubeconfig of a node's daemon, which leads to the node's wrapper, where it needs no
// rights, or to kube-apiserver with those of manifests/.
func (c *Cluster) dnsDaemonKubeconfig(node *Node) (string, error) {
	if c.options.DNSFromAPIServer {
		return c.credentials.writeKubeconfig("dns-daemon.kubeconfig", RoleDNSDaemon, c.apiServerURL())
	}
	return c.credentials.writeKubeconfig("dns-daemon-"+node.Spec.Name+".kubeconfig", RoleNobody, node.WrapperURL())
}

// ErrNoSuchName is told for a name that DNS says does not exist.
var ErrNoSuchName = errors.New("no such name")

// Lookup asks the node's CoreDNS, from the node, for the addresses of a name; recordType is "A" or "AAAA". They are
// sorted. A name that exists, but has no such address, has none.
func (n *Node) Lookup(ctx context.Context, name, recordType string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	connection, err := n.dial()(ctx, "udp", local(dnsPort))
	if err != nil {
		return nil, fmt.Errorf("asking CoreDNS on node %s: %w", n.Spec.Name, err)
	}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.StringToType[recordType])
	conn := &dns.Conn{Conn: connection, UDPSize: dns.MaxMsgSize}
	defer conn.Close()
	question.SetEdns0(4096, false)
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, fmt.Errorf("asking CoreDNS on node %s: %w", n.Spec.Name, err)
		}
	}
	if err := conn.WriteMsg(question); err != nil {
		return nil, fmt.Errorf("asking CoreDNS on node %s: %w", n.Spec.Name, err)
	}
	answer, err := conn.ReadMsg()
	if err != nil {
		return nil, fmt.Errorf("asking CoreDNS on node %s: %w", n.Spec.Name, err)
	}
	switch answer.Rcode {
	case dns.RcodeSuccess:
	case dns.RcodeNameError:
		return nil, fmt.Errorf("%s on node %s: %w", name, n.Spec.Name, ErrNoSuchName)
	default:
		return nil, fmt.Errorf("%s on node %s: CoreDNS answers %s", name, n.Spec.Name, dns.RcodeToString[answer.Rcode])
	}
	var addresses []string
	for _, record := range answer.Answer {
		switch record := record.(type) {
		case *dns.A:
			addresses = append(addresses, record.A.String())
		case *dns.AAAA:
			addresses = append(addresses, record.AAAA.String())
		}
	}
	slices.Sort(addresses)
	return addresses, nil
}
