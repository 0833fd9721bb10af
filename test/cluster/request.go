package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
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

// Metric is the value of a series in a page of metrics, given as the page has it. Without labels it is the sum over all
// labels. It is false if the page does not have it.
func Metric(page, series string) (value float64, found bool) {
	for line := range strings.Lines(page) {
		rest, same := strings.CutPrefix(line, series)
		if !same || !strings.HasPrefix(rest, " ") && (!strings.HasPrefix(rest, "{") || strings.HasSuffix(series, "}")) {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " "):]), 64); err == nil {
			value, found = value+n, true
		}
	}
	return value, found
}

// AskEtcd calls etcd's JSON gateway, such as "kv/put". It is for what kube-apiserver no longer takes, but older ones have
// stored, and for loads that it would take long for.
func (c *Cluster) AskEtcd(ctx context.Context, call string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+local(c.ports.etcd)+"/v3/"+call,
		bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := c.etcd.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return fmt.Errorf("etcd: %s: %w", call, err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("etcd: %s: %s: %s", call, response.Status, said)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(said, answer)
}

func firstLines(text string, limit int) string {
	if len(text) > limit {
		return text[:limit] + "…"
	}
	return text
}
