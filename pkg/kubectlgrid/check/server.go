package check

import (
	"context"
	"net/http"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// Server is the version of the API server, and when its certificate ends.
type Server struct {
	Version        string
	CertificateEnd time.Time
}

// AskServer asks the API server for its version, and reads the end of its certificate.
func AskServer(ctx context.Context, config *rest.Config) (Server, error) {
	var answer Server
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return certificateWatcher{next, &answer} })
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return Server{}, err
	}
	info, err := api.ServerVersionWithContext(ctx)
	if err != nil {
		return Server{}, err
	}
	answer.Version = info.GitVersion
	return answer, nil
}

// certificateWatcher notes when the certificate of a server ends.
type certificateWatcher struct {
	http.RoundTripper

	to *Server
}

// RoundTrip implements http.RoundTripper.
func (w certificateWatcher) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.RoundTripper.RoundTrip(request)
	if err == nil && response.TLS != nil && len(response.TLS.PeerCertificates) > 0 {
		w.to.CertificateEnd = response.TLS.PeerCertificates[0].NotAfter
	}
	return response, err
}
