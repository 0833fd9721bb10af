package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/application-grid/application-grid/pkg/lite"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

const program = "lite-apiserver"

// What --help and the man page begin with.
const (
	short        = "The node's own API server: a kubelet that restarts without the cloud starts its pods"
	introduction = "lite-apiserver runs on a node, between its kubelet and kube-apiserver. It passes requests on,\n" +
		"and keeps what the kubelet needs to start the node's pods again. While kube-apiserver is away the kubelet\n" +
		"is answered from that, and from nothing else. docs/autonomy.md says how the kubelet is led to it."
)

// options are the flags. --port and --file-cache-path are those of SuperEdge's lite-apiserver.
type options struct {
	kubeconfig    string
	port          int
	healthAddress string
	dir           string
	sealKeyFile   string
	unsealed      bool
	version       bool

	flags *flags.Set
}

func newOptions() *options {
	o := &options{flags: flags.New(program)}

	f := o.flags.Section("API server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "/etc/kubernetes/kubelet.conf", "The kubelet's own kubeconfig, which "+
		"leads to kube-apiserver with the node's certificate.")

	f = o.flags.Section("Serving")
	f.IntVar(&o.port, "port", 51003, "Port of 127.0.0.1 where the kubelet is served, over TLS.")
	f.StringVar(&o.healthAddress, "health-bind-address", "localhost:51009",
		"host:port of /healthz, /livez and /readyz, plain HTTP for anyone; 0 for none.")

	f = o.flags.Section("What is kept")
	f.StringVar(&o.dir, "file-cache-path", "/data/lite-apiserver/cache", "Directory of what is kept, and of the "+
		"kubeconfig for the kubelet, kubelet.conf.")
	f.StringVar(&o.sealKeyFile, "seal-key-file", "", "File with a key of 32 bytes in base64, with which everything "+
		"that is kept is encrypted (AES-GCM). Best a credential of systemd that the TPM seals.")
	f.BoolVar(&o.unsealed, "unsealed", false, "Keep Secrets and tokens on the disk as they are. Without this, a key "+
		"is needed.")

	o.flags.Logging()

	f = o.flags.Section("Other")
	f.BoolVar(&o.version, "version", false, "Print the version and exit.")
	return o
}

// config turns the flags into the configuration of a server. The error says what to change.
func (o *options) config() (lite.Config, error) {
	var none lite.Config
	switch {
	case o.port < 1 || o.port > 65535:
		return none, fmt.Errorf("--port %d is no port", o.port)
	case !filepath.IsAbs(o.dir):
		return none, fmt.Errorf("--file-cache-path %q is not an absolute path", o.dir)
	case o.sealKeyFile == "" && !o.unsealed:
		return none, errors.New("what is kept on the disk has Secrets: give --seal-key-file, or --unsealed if they " +
			"may be read by who has the disk")
	case o.sealKeyFile != "" && o.unsealed:
		return none, errors.New("--seal-key-file and --unsealed exclude each other")
	}
	config := lite.Config{Kubeconfig: o.kubeconfig, Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)),
		HealthAddress: o.healthAddress, Dir: filepath.Clean(o.dir)}
	if o.healthAddress == "0" {
		config.HealthAddress = ""
	} else if _, _, err := net.SplitHostPort(o.healthAddress); err != nil {
		return none, fmt.Errorf("--health-bind-address %q is not host:port, nor 0: %w", o.healthAddress, err)
	}
	if o.sealKeyFile != "" {
		content, err := os.ReadFile(o.sealKeyFile)
		if err != nil {
			return none, fmt.Errorf("--seal-key-file: %w", err)
		}
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(content)))
		if err != nil || len(key) != 32 {
			return none, fmt.Errorf("--seal-key-file %s: it must have 32 bytes in base64, as openssl rand -base64 32 "+
				"prints", o.sealKeyFile)
		}
		config.SealKey = key
	}
	return config, nil
}
