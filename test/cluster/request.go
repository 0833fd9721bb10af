package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
)

// maxReply limits how much of a reply is read.
const maxReply = 64 << 20

// Reply is the answer to an HTTP request.
type Reply struct {
	Status int
	Header http.Header
	Body   string
}

// dialer is how a connection is opened; a namespace's or the host's.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// newClient returns a client that makes a new connection for every request: what a Service does with a
// connection is decided when it is opened.
func newClient(dial dialer, tlsConfig *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: dial, TLSClientConfig: tlsConfig,
		DisableKeepAlives: true}}
}

// freshClient is newClient in the control plane's namespace.
func (c *Cluster) freshClient(tlsConfig *tls.Config) *http.Client {
	return newClient(c.dial, tlsConfig)
}

// tlsConfig trusts the cluster's authority; verify is false for components with a certificate that they signed
// themselves.
func (c *Cluster) tlsConfig(verify bool) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(c.credentials.ca)
	return &tls.Config{RootCAs: pool, InsecureSkipVerify: !verify} //nolint:gosec // health questions on loopback only
}

// Get requests a URL on a new connection that dial opens.
func Get(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error),
	url string) (*Reply, error) {
	return get(ctx, newClient(dial, nil), url)
}

func get(ctx context.Context, client *http.Client, url string) (*Reply, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReply))
	if err != nil {
		return nil, fmt.Errorf("GET %s: reading the reply: %w", url, err)
	}
	return &Reply{Status: response.StatusCode, Header: response.Header, Body: string(body)}, nil
}

func firstLines(text string, limit int) string {
	if len(text) > limit {
		return text[:limit] + "…"
	}
	return text
}
