package explain

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/view"
)

// Client asks one wrapper.
type Client struct {
	// Server is the URL of the wrapper.
	Server string
	// AsNode names the node whose view is explained; the wrapper's own if empty.
	AsNode string
	// CAFile, CertFile and KeyFile are for a wrapper that serves TLS; empty if not used.
	CAFile, CertFile, KeyFile string
	// Timeout is how long an answer may take.
	Timeout time.Duration
}

// Validate reports what is wrong with the fields. Its errors name the flags of the command.
func (c Client) Validate() error {
	server, err := url.Parse(c.Server)
	if err != nil || server.Host == "" || (server.Scheme != "http" && server.Scheme != "https") {
		return fmt.Errorf("--server %q is not a URL such as http://localhost:51006", c.Server)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("--cert-file and --key-file go together")
	}
	return nil
}

// Service names a Service.
type Service struct{ Namespace, Name string }

// ParseService reads NAMESPACE/SERVICE.
func ParseService(text string) (Service, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return Service{}, fmt.Errorf("%q is not NAMESPACE/SERVICE", text)
	}
	return Service{namespace, name}, nil
}

// Answer is what a wrapper says of a Service.
type Answer struct {
	// Explanation is the answer.
	Explanation view.Explanation
	// Body is the answer as the wrapper wrote it: JSON, which may have more than Explanation.
	Body []byte
}

// Ask asks the wrapper about a Service. What the wrapper refuses is an error in its own words.
func (c Client) Ask(ctx context.Context, service Service) (*Answer, error) {
	body, err := c.get(ctx, service)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Body: body}
	if err := json.Unmarshal(body, &answer.Explanation); err != nil {
		return nil, fmt.Errorf("%s did not answer like a wrapper: %w", c.Server, err)
	}
	return answer, nil
}

func (c Client) get(ctx context.Context, service Service) ([]byte, error) {
	client, err := c.http()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	path := "/debug/explain/" + url.PathEscape(service.Namespace) + "/" + url.PathEscape(service.Name)
	if c.AsNode != "" {
		path += "?node=" + url.QueryEscape(c.AsNode)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.Server, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("no answer from the wrapper of this node; does it run, and is --server right? %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the wrapper's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		var status metav1.Status
		if json.Unmarshal(body, &status) == nil && status.Message != "" {
			return nil, errors.New(status.Message)
		}
		return nil, fmt.Errorf("%s answered %s", c.Server, response.Status)
	}
	return body, nil
}

// http makes the client of HTTP. It uses no proxy of the environment: the wrapper is on this node.
func (c Client) http() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file %s has no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert-file, --key-file: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, nil
}
