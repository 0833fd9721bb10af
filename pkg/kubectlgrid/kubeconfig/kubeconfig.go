// Package kubeconfig makes kubeconfigs for the programs that run on nodes, but not in pods. It implements kubectl grid
// kubeconfig.
package kubeconfig

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// Programs are the programs that run on nodes, and also the names of their ServiceAccounts in manifests/.
var Programs = []string{"application-grid-wrapper", "statefulset-grid-daemon"}

// Request describes a kubeconfig to make.
type Request struct {
	// Program is one of Programs, Namespace that of its ServiceAccount.
	Program, Namespace string
	// Address is the URL of the API server for the node; empty to look for it.
	Address string
	// Duration is the requested lifetime of the token.
	Duration time.Duration
}

// Made is a kubeconfig.
type Made struct {
	// Data is the file.
	Data []byte
	// Server is the URL of the API server in it, Ends when its token ends.
	Server string
	Ends   time.Time
}

// Make reads the authority and the address of the API server, and asks for a token.
func Make(ctx context.Context, c cluster.Cluster, r Request) (*Made, error) {
	var authority corev1.ConfigMap
	if err := c.API.Get(ctx, client.ObjectKey{Namespace: r.Namespace, Name: "kube-root-ca.crt"},
		&authority); err != nil {
		return nil, fmt.Errorf("asking for the authority of the API server: %w", err)
	}
	made := &Made{Server: r.Address}
	if made.Server == "" {
		var err error
		if made.Server, err = nodeAddress(ctx, c); err != nil {
			return nil, err
		}
	}
	token := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(r.Duration.Seconds()))},
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Program}}
	if err := c.API.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, fmt.Errorf("asking for a token of ServiceAccount %s/%s, which manifests/%s/rbac.yaml makes: %w",
			r.Namespace, r.Program, r.Program, err)
	}
	made.Ends = token.Status.ExpirationTimestamp.Time
	config := clientcmdapi.NewConfig()
	config.Clusters[r.Program] = &clientcmdapi.Cluster{Server: made.Server,
		CertificateAuthorityData: []byte(authority.Data["ca.crt"])}
	config.AuthInfos[r.Program] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts[r.Program] = &clientcmdapi.Context{Cluster: r.Program, AuthInfo: r.Program}
	config.CurrentContext = r.Program
	var err error
	if made.Data, err = clientcmd.Write(*config); err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return made, nil
}

// nodeAddress returns the API server's address for nodes, if the cluster has published it; otherwise the one that this
// command uses.
func nodeAddress(ctx context.Context, c cluster.Cluster) (string, error) {
	var published corev1.ConfigMap
	err := c.API.Get(ctx, client.ObjectKey{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, &published)
	if client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("asking for the API server's address, which --address would give: %w", err)
	}
	if err == nil {
		config, err := clientcmd.Load([]byte(published.Data["kubeconfig"]))
		if err != nil {
			return "", fmt.Errorf("reading ConfigMap kube-public/cluster-info: %w", err)
		}
		if servers := slices.Collect(maps.Values(config.Clusters)); len(servers) == 1 { // as kubeadm writes it
			return servers[0].Server, nil
		}
	}
	return c.Config.Host, nil
}
