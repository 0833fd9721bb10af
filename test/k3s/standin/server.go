package standin

import (
	"io"
	"net"
	"strings"
	"time"
)

// PKI is where a server finds the certificates of its control plane, by kubeadm's names.
const PKI = "/etc/kubernetes/pki/"

// startControlPlane starts etcd and the components of the control plane. kube-apiserver listens on this port, of all
// addresses: it advertises that port for the Service kubernetes, where k3s' own advertises 6443.
func (a *agent) startControlPlane(port string) {
	const etcd = "http://127.0.0.1:2379"
	go a.child("etcd", "--data-dir=/var/lib/rancher/k3s/server/db/etcd", "--listen-client-urls="+etcd,
		"--advertise-client-urls="+etcd, "--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync")
	go func() {
		awaitPort("127.0.0.1:2379")
		a.child("kube-apiserver", "--etcd-servers="+etcd, "--bind-address=0.0.0.0", "--secure-port="+port,
			"--advertise-address="+a.first("node-ip", ""), "--allow-privileged=true", "--authorization-mode=Node,RBAC",
			"--service-cluster-ip-range="+a.first("service-cidr", "10.43.0.0/16"),
			"--enable-admission-plugins=NodeRestriction", "--endpoint-reconciler-type=lease",
			"--client-ca-file="+PKI+"ca.crt",
			"--tls-cert-file="+PKI+"apiserver.crt", "--tls-private-key-file="+PKI+"apiserver.key",
			"--kubelet-client-certificate="+PKI+"apiserver-kubelet-client.crt",
			"--kubelet-client-key="+PKI+"apiserver-kubelet-client.key", "--kubelet-preferred-address-types=InternalIP",
			"--service-account-key-file="+PKI+"sa.pub", "--service-account-signing-key-file="+PKI+"sa.key",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--requestheader-client-ca-file="+PKI+"front-proxy-ca.crt",
			"--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
			"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file="+PKI+"front-proxy-client.crt",
			"--proxy-client-key-file="+PKI+"front-proxy-client.key")
	}()
	for name, args := range map[string][]string{
		"kube-controller-manager": {"--service-account-private-key-file=" + PKI + "sa.key",
			"--root-ca-file=" + PKI + "ca.crt", "--use-service-account-credentials", "--allocate-node-cidrs=false",
			"--cluster-signing-cert-file=" + PKI + "ca.crt", "--cluster-signing-key-file=" + PKI + "ca.key"},
		"kube-scheduler": nil,
	} {
		go func() {
			awaitPort("127.0.0.1:" + port)
			file := strings.TrimPrefix(name, "kube-")
			a.child(name, append(args, "--leader-elect=false", "--kubeconfig=/etc/kubernetes/"+file+".conf")...)
		}()
	}
}

func awaitPort(address string) {
	for {
		connection, err := net.Dial("tcp", address) //nolint:noctx // the loopback answers at once
		if err == nil {
			_ = connection.Close()
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// balance leads connections to the target. One that cannot be led there is accepted and closed, as k3s does it.
func balance(listener net.Listener, target string) error {
	for {
		from, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer from.Close()
			to, err := net.DialTimeout("tcp", target, 10*time.Second) //nolint:noctx // it is bounded
			if err != nil {
				return
			}
			defer to.Close()
			ended := make(chan struct{}, 2)
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				go func() {
					_, _ = io.Copy(pair[1], pair[0])
					ended <- struct{}{}
				}()
			}
			<-ended
		}()
	}
}
