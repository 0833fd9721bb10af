package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/application-grid/application-grid/pkg/lite"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

const program = "lite-apiserver"

// defaultDir is where SuperEdge's lite-apiserver keeps its files.
const defaultDir = "/data/lite-apiserver/cache"

// minOfflineAge is more than the time between two bookmarks of kube-apiserver, about a minute.
const minOfflineAge = 2 * time.Minute

// What --help and the man page begin with.
const (
	short        = "Answers a node's kubelet while kube-apiserver is away, so that it starts the node's pods"
	introduction = "lite-apiserver runs on a node, between its kubelet and kube-apiserver. It passes requests on,\n" +
		"and keeps what the kubelet needs to start the node's pods again. While kube-apiserver is away it answers\n" +
		"the kubelet from that, and from nothing else. docs/autonomy.md says how to point the kubelet to it."
)

// options are the flags. --port and --file-cache-path are those of SuperEdge's lite-apiserver.
type options struct {
	// lite has what is taken as it is given.
	lite        lite.Config
	port        int
	accounts    []string
	sealKeyFile string
	unsealed    bool

	flags *flags.Set
}

func newOptions() *options {
	o := &options{flags: flags.New(program)}

	f := o.flags.Section("API server")
	f.StringVar(&o.lite.Kubeconfig, "kubeconfig", "/etc/kubernetes/kubelet.conf", "The kubelet's own kubeconfig "+
		"of kube-apiserver, with the node's certificate.")

	f = o.flags.Section("Serving")
	f.IntVar(&o.port, "port", 51003, "Port on 127.0.0.1 for the kubelet, over TLS.")
	f.StringVar(&o.lite.HealthAddress, "health-bind-address", "localhost:51009",
		"host:port of /healthz, /livez, /readyz and /metrics, plain HTTP for anyone; 0 for none.")

	f.StringVar(&o.lite.Further.Address, "bind-address", "", "IP address of the node on which pods are served as "+
		"well, on the same port. It needs --tls-cert-file.")
	f.StringVar(&o.lite.Further.CertFile, "tls-cert-file", "", "Certificate for --bind-address, in PEM, of a CA that "+
		"pods trust. It is read again for new connections.")
	f.StringVar(&o.lite.Further.KeyFile, "tls-private-key-file", "", "Key of --tls-cert-file, in PEM.")
	f.StringSliceVar(&o.accounts, "allow-service-accounts", nil, "ServiceAccounts, comma-separated, as "+
		"NAMESPACE/NAME (kube-flannel/flannel). While kube-apiserver is away, their pods on this node get what "+
		"kube-apiserver has let them read before, without Secrets.")

	f = o.flags.Section("What is kept")
	f.StringVar(&o.lite.Dir, "file-cache-path", defaultDir, "Directory of what is kept, and of "+
		"kubelet.conf, the kubeconfig for the kubelet.")
	f.StringVar(&o.sealKeyFile, "seal-key-file", "", "File with a key of 32 bytes in base64 that encrypts everything "+
		"that is kept (AES-GCM). A credential of systemd that the TPM seals is best.")
	f.BoolVar(&o.unsealed, "unsealed", false, "Keep Secrets and tokens on the disk without encryption. Otherwise "+
		"--seal-key-file is needed.")

	f.DurationVar(&o.lite.MaxOfflineAge, "max-offline-age", 0, "Time since the last contact with kube-apiserver after "+
		"which the kubelet is no longer answered, for clusters that start the pods of such a node elsewhere. 0: "+
		"no limit.")

	o.flags.Logging()
	return o
}

// readClients reads which other clients than the kubelet are served, and where.
func (o *options) readClients(config *lite.Config) error {
	for _, account := range o.accounts {
		namespace, name, _ := strings.Cut(account, "/")
		problems := slices.Concat(validation.IsDNS1123Label(namespace), validation.IsDNS1123Subdomain(name))
		if len(problems) > 0 {
			return fmt.Errorf("--allow-service-accounts: %q is not NAMESPACE/NAME: %s", account, problems[0])
		}
		config.Accounts = append(config.Accounts, types.NamespacedName{Namespace: namespace, Name: name})
	}
	further := &config.Further
	if *further == (lite.Further{}) {
		return nil
	}
	address, err := netip.ParseAddr(further.Address)
	switch {
	case further.Address == "" || further.CertFile == "" || further.KeyFile == "":
		return errors.New("--bind-address, --tls-cert-file and --tls-private-key-file belong together: give all " +
			"three, or none")
	case err != nil || address.IsUnspecified() || address.IsLoopback():
		return fmt.Errorf("--bind-address %q is not one of the node's IP addresses that pods reach", further.Address)
	}
	further.Address = net.JoinHostPort(further.Address, strconv.Itoa(o.port))
	return nil
}

func (o *options) readSealKey(config *lite.Config) error {
	if o.sealKeyFile == "" {
		return nil
	}
	content, err := os.ReadFile(o.sealKeyFile)
	if err != nil {
		return fmt.Errorf("--seal-key-file: %w", err)
	}
	config.SealKey, err = base64.StdEncoding.DecodeString(strings.TrimSpace(string(content)))
	if err != nil || len(config.SealKey) != 32 {
		return fmt.Errorf("--seal-key-file %s: it must have 32 bytes in base64, as openssl rand -base64 32 prints",
			o.sealKeyFile)
	}
	return nil
}

// config turns the flags into the configuration of a server. The error says what to change.
func (o *options) config() (lite.Config, error) {
	config := o.lite
	switch {
	case o.port < 1 || o.port > 65535:
		return config, fmt.Errorf("--port %d: must be between 1 and 65535", o.port)
	case !filepath.IsAbs(config.Dir):
		return config, fmt.Errorf("--file-cache-path %q is not an absolute path", config.Dir)
	case o.sealKeyFile == "" && !o.unsealed:
		return config, errors.New("what is kept on the disk has Secrets: give --seal-key-file, or --unsealed if " +
			"whoever has the disk may read them")
	case config.MaxOfflineAge != 0 && config.MaxOfflineAge < minOfflineAge:
		return config, fmt.Errorf("--max-offline-age %s: must be at least %s, because kube-apiserver may be silent "+
			"for a minute, or 0 for no limit", config.MaxOfflineAge, minOfflineAge)
	case o.sealKeyFile != "" && o.unsealed:
		return config, errors.New("--seal-key-file and --unsealed exclude each other")
	}
	config.Dir = filepath.Clean(config.Dir)
	config.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port))
	if err := o.readClients(&config); err != nil {
		return config, err
	}
	if config.HealthAddress == "0" {
		config.HealthAddress = ""
	} else if _, _, err := net.SplitHostPort(config.HealthAddress); err != nil {
		return config, fmt.Errorf("--health-bind-address %q is not host:port, nor 0: %w", config.HealthAddress, err)
	}
	return config, o.readSealKey(&config)
}
