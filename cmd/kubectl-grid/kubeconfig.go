package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodePrograms are the programs that run on nodes, and so the ServiceAccounts of manifests/ that may need a kubeconfig.
var nodePrograms = []string{"application-grid-wrapper", "statefulset-grid-daemon"}

// kubeconfigOptions are the flags of `kubectl grid kubeconfig`.
type kubeconfigOptions struct {
	address  string
	duration time.Duration
}

func newKubeconfigCommand(c *command) *cobra.Command {
	o := &kubeconfigOptions{}
	cmd := &cobra.Command{
		Use:   "kubeconfig PROGRAM",
		Short: "A kubeconfig for a program that runs on a node, but not in a pod",
		Long: "Prints a kubeconfig for " + strings.Join(nodePrograms, " or ") + ": the address of the API server,\n" +
			"its authority, and a new token of the ServiceAccount of that name, in kube-system or in --namespace. On stderr it\n" +
			"says when the token ends; the same command renews it. You need the right to create tokens of that ServiceAccount.\n\n" +
			"Exit codes: 0 all is well; 1 the question could not be asked; 2 the command line is wrong.",
		Example: "  kubectl grid kubeconfig application-grid-wrapper > application-grid-wrapper.kubeconfig\n" +
			"  kubectl grid kubeconfig statefulset-grid-daemon --address=https://127.0.0.1:6444 --duration=720h",
		Args: usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nodePrograms, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), c, args[0]) },
	}
	cmd.Flags().StringVar(&o.address, "address", "", "Address of the API server as the node has it, https://HOST:PORT; by default the one that kubeadm "+
		"has published for nodes that join (ConfigMap kube-public/cluster-info), or else the one that this command asks")
	cmd.Flags().DurationVar(&o.duration, "duration", 8760*time.Hour, "For how long the token is asked for; the API server may give it for less")
	return cmd
}

func (o *kubeconfigOptions) run(ctx context.Context, c *command, program string) error {
	if !slices.Contains(nodePrograms, program) {
		return usageError{fmt.Errorf("%q is no program of a node; there are %s", program, strings.Join(nodePrograms, " and "))}
	}
	if o.duration < 10*time.Minute {
		return usageError{errors.New("--duration must be 10m or longer: API servers give no shorter tokens")}
	}
	cluster, _, err := c.connect()
	if err != nil {
		return err
	}
	namespace := c.overrides.Context.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceSystem
	}
	var authority corev1.ConfigMap
	if err := cluster.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "kube-root-ca.crt"}, &authority); err != nil {
		return fmt.Errorf("asking for the authority of the API server: %w", err)
	}
	address := o.address
	if address == "" {
		if address, err = cluster.nodeAddress(ctx, c); err != nil {
			return err
		}
	}
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(o.duration.Seconds()))}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: program}}
	if err := cluster.api.SubResource("token").Create(ctx, account, token); err != nil {
		return fmt.Errorf("asking for a token of ServiceAccount %s/%s, which manifests/%s/rbac.yaml makes: %w", namespace, program, program, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[program] = &clientcmdapi.Cluster{Server: address, CertificateAuthorityData: []byte(authority.Data["ca.crt"])}
	config.AuthInfos[program] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts[program] = &clientcmdapi.Context{Cluster: program, AuthInfo: program}
	config.CurrentContext = program
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	ends := token.Status.ExpirationTimestamp
	fmt.Fprintf(c.stderr, "The server is %s. The token ends at %s.\n", address, ends.UTC().Format(time.RFC3339))
	if given := time.Until(ends.Time); given < o.duration-time.Minute {
		cluster.warn("the API server gives tokens for less than --duration=%s: this one is good for %s", o.duration, given.Round(time.Minute))
	}
	_, err = c.stdout.Write(data)
	return err
}

// nodeAddress is the API server's address as nodes have it, as far as the cluster says so.
func (s cluster) nodeAddress(ctx context.Context, c *command) (string, error) {
	var published corev1.ConfigMap
	err := s.api.Get(ctx, client.ObjectKey{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, &published)
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
	config, err := c.loader().ClientConfig()
	if err != nil {
		return "", err
	}
	return config.Host, nil
}
