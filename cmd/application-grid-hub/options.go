package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/hub"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/serve/metricsport"
)

const program = "application-grid-hub"

// What --help and the man page begin with.
const (
	short        = "Gives the wrapper of every node its share of the cluster's Services and endpoints"
	introduction = "application-grid-hub runs in the cloud, behind the API server's aggregation, and gives the " +
		"wrapper of\n" +
		"every node its share: of Services with the annotation topologyKeys the endpoints that the node may see, " +
		"and\n" +
		"no others. Flags of serving, authentication, authorization and audit are those of every aggregated API " +
		"server."
)

// options are the flags.
type options struct {
	api apiclient.Options
	// hub has what is taken as it is given.
	hub                hub.Config
	service, tlsSecret string

	serving        *genericoptions.SecureServingOptions
	authentication *genericoptions.DelegatingAuthenticationOptions
	authorization  *genericoptions.DelegatingAuthorizationOptions
	audit          *genericoptions.AuditOptions

	flags *flags.Set
}

func newOptions() *options {
	o := &options{
		flags:          flags.New(program),
		api:            apiclient.Options{Program: program, PassesOn: true},
		serving:        genericoptions.NewSecureServingOptions(),
		authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		audit:          genericoptions.NewAuditOptions(),
	}
	o.serving.BindPort = 8443
	// A certificate that it makes for itself is kept in memory, unless --cert-dir names a directory.
	o.serving.ServerCert.CertDirectory = ""
	o.serving.ServerCert.PairName = program

	f := o.flags.Section("API server")
	f.StringVar(&o.api.Kubeconfig, "kubeconfig", "", "Kubeconfig of the API server that the hub follows. Empty: the "+
		"service account of the pod.")
	f.Float32Var(&o.api.QPS, "kube-qps", 50, "Limit of requests per second to the API server.")
	f.IntVar(&o.api.Burst, "kube-burst", 100, "Limit of these requests that are sent at once.")

	f = o.flags.Section("Shares")
	f.IntVar(&o.hub.MaxQueuedBytes, "max-queued-bytes", hub.DefaultMaxQueuedBytes, "Limit of the bytes that wait to "+
		"be sent to all streams. Beyond it, streams that are behind are ended, and new ones are answered 429.")

	f = o.flags.Section("Callers")
	f.BoolVar(&o.hub.AllowUnboundTokens, "allow-unbound-tokens", false, "Let ServiceAccount tokens that are not bound "+
		"to a node ask for every node's share, as far as RBAC permits it. Otherwise they are refused.")
	f.BoolVar(&o.hub.ReviewAll, "review-all", false, "Ask the API server to authorize each request. Otherwise "+
		"requests with the certificate of its front proxy are permitted, because it has authorized them.")

	f = o.flags.Section("Replicas")
	f.StringVar(&o.service, "service", "kube-system/"+program,
		"NAMESPACE/NAME of the hub's Service. The certificate in --tls-secret is for its name.")
	f.StringVar(&o.tlsSecret, "tls-secret", "",
		"NAMESPACE/NAME of a Secret in which the replicas keep a serving certificate, which they renew and write "+
			"into the APIService's caBundle. Empty: the certificate of --tls-cert-file is used.")

	f = o.flags.Section("Metrics")
	f.StringVar(&o.hub.MetricsBindAddress, "metrics-bind-address", "",
		"host:port of /metrics over plain HTTP, for anyone. Empty: /metrics is served only over TLS, to those whom "+
			"RBAC permits it.")

	o.serving.AddFlags(o.flags.Section("Secure serving"))
	o.authentication.AddFlags(o.flags.Section("Authentication"))
	o.authorization.AddFlags(o.flags.Section("Authorization"))
	o.audit.AddFlags(o.flags.Section("Audit"))

	o.flags.Logging()
	return o
}

// config turns the flags into the configuration of a hub. The error says what to change.
func (o *options) config() (hub.Config, error) {
	config := o.hub
	config.Apply = o.apply
	var err error
	config.Service, err = namespacedName("service", o.service)
	problems := []error{err}
	if config.MaxQueuedBytes <= 0 {
		problems = append(problems, errors.New("--max-queued-bytes must be greater than 0"))
	}
	if o.tlsSecret != "" {
		config.Secret, err = namespacedName("tls-secret", o.tlsSecret)
		problems = append(problems, err)
		if o.serving.ServerCert.CertKey.CertFile != "" {
			problems = append(problems, errors.New("--tls-secret and --tls-cert-file are two certificates; give one"))
		}
	}
	if config.MetricsBindAddress != "" {
		problems = append(problems, metricsport.CheckAddress(config.MetricsBindAddress))
	}
	problems = slices.Concat(problems, o.serving.Validate(), o.authentication.Validate(), o.authorization.Validate(),
		o.audit.Validate())
	if err := errors.Join(problems...); err != nil {
		return config, err
	}
	config.Connection, err = o.api.Connect()
	return config, err
}

func namespacedName(flag, value string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(value, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, fmt.Errorf("--%s %q is not of the form NAMESPACE/NAME", flag, value)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// apply sets what the standard flags say.
func (o *options) apply(config *genericapiserver.Config) error {
	if err := o.serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{
		net.IPv4(127, 0, 0, 1),
	}); err != nil {
		return fmt.Errorf("making a serving certificate: %w", err)
	}
	if err := o.serving.WithLoopback().ApplyToConfig(config); err != nil {
		return err
	}
	if err := o.authentication.ApplyTo(&config.Authentication, config.SecureServing, config.OpenAPIConfig); err != nil {
		return err
	}
	if err := o.authorization.ApplyTo(&config.Authorization); err != nil {
		return err
	}
	return o.audit.ApplyTo(config)
}
