package proxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// TLSFiles names the files of the server's TLS.
type TLSFiles struct {
	// Cert and Key are the serving certificate and its key, in PEM.
	Cert, Key string
	// Dir is the directory of a certificate that the wrapper gets for itself, if Cert and Key are empty.
	Dir string
	// ClientCA, if set, has the certificate authorities of clients. A client must present a certificate that one of
	// them signed.
	ClientCA string
}

// reloadInterval is how long files are used before they are read again. Certificates are renewed hours before they
// expire.
const reloadInterval = 10 * time.Second

// reloadingTLS is a TLS configuration that follows its files, which are read for new connections. If a file cannot be
// used later, that is logged and the last good configuration is kept; at the start it is an error.
//
// controller-runtime's certwatcher does less: it does not know client CAs, uses a renewed chain only if the leaf or the
// key has changed as well, and has its own logs and metrics.
type reloadingTLS struct {
	files    TLSFiles
	interval time.Duration

	mu sync.Mutex
	// current is the configuration in use, contents the files from which it was read, and read is when they were last
	// looked at. Guarded by mu.
	current  *tls.Config
	contents [3][]byte
	read     time.Time
}

// newReloadingTLS reads the files. Its errors name the file that cannot be used, and why.
func newReloadingTLS(files TLSFiles) (*reloadingTLS, error) {
	if files.Cert == "" || files.Key == "" {
		return nil, errors.New("serving TLS (--insecure=false) needs --cert-dir, or --cert-file and --key-file")
	}
	t := &reloadingTLS{files: files, interval: reloadInterval}
	if _, err := t.load(); err != nil {
		return nil, err
	}
	return t, nil
}

// load reads the files, and starts to use them if they have changed and are valid. The caller holds the lock, except
// before the first connection.
func (t *reloadingTLS) load() (changed bool, err error) {
	var contents [3][]byte
	for i, f := range []struct{ flag, name string }{
		{"--cert-file", t.files.Cert}, {"--key-file", t.files.Key}, {"--ca-file", t.files.ClientCA},
	} {
		if f.name == "" {
			continue
		}
		if contents[i], err = os.ReadFile(f.name); err != nil {
			return false, fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	if t.current != nil && slices.EqualFunc(contents[:], t.contents[:], bytes.Equal) {
		return false, nil
	}
	certificate, err := tls.X509KeyPair(contents[0], contents[1])
	if err != nil {
		return false, fmt.Errorf("--cert-file %s and --key-file %s: %w", t.files.Cert, t.files.Key, err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{certificate},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if t.files.ClientCA != "" {
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(contents[2]) {
			return false, fmt.Errorf("--ca-file %s: no certificate in it", t.files.ClientCA)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	t.contents, t.current = contents, config
	return true, nil
}

// config returns the configuration for a listener. Every connection uses the files' content of the last interval.
func (t *reloadingTLS) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			return t.latest(klog.FromContext(hello.Context())), nil
		},
	}
}

// latest returns the configuration in use, after it has read the files again if that is due.
func (t *reloadingTLS) latest(logger klog.Logger) *tls.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); now.Sub(t.read) >= t.interval {
		t.read = now
		changed, err := t.load()
		switch {
		case err != nil:
			logger.Error(err, "Cannot use the new TLS files; serving with the last good ones")
		case changed:
			logger.Info("Serving with new TLS files")
		}
	}
	return t.current
}

func (p *Proxy) makeTLS(klog.Logger) error {
	if p.config.TLS == nil {
		return nil
	}
	files := *p.config.TLS
	if files.Cert == "" && files.Key == "" && files.Dir != "" {
		own, err := p.config.Connection.Config()
		if err != nil {
			return err
		}
		clusterCA, err := p.config.Connection.CA()
		if err != nil {
			return err
		}
		if p.certificate, err = newServingCertificate(p.config, own, clusterCA); err != nil {
			return err
		}
		files.Cert, files.Key = p.certificate.file(), p.certificate.file()
	}
	var err error
	p.tls, err = newReloadingTLS(files)
	return err
}
