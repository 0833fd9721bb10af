package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

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

// ParseService reads NAMESPACE/SERVICE.
func ParseService(text string) (types.NamespacedName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, fmt.Errorf("%q is not NAMESPACE/SERVICE", text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// Answer is a wrapper's answer about a Service.
type Answer struct {
	// Explanation is the answer.
	Explanation view.Explanation
	// Body is the answer as the wrapper wrote it: JSON, which may have more than Explanation.
	Body []byte
}

// Ask asks the wrapper about a Service. A refusal is an error with the wrapper's message.
func (c Client) Ask(ctx context.Context, service types.NamespacedName) (*Answer, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // Status
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(&rest.Config{
		Host:            c.Server,
		ContentConfig:   rest.ContentConfig{NegotiatedSerializer: codecs},
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile},
		// The wrapper is on this node, so proxies from the environment are not used.
		Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }, //nolint:nilnil // no proxy
	})
	if err != nil {
		return nil, fmt.Errorf("--server, --ca-file, --cert-file, --key-file: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	request := client.Get().AbsPath("/debug/explain", service.Namespace, service.Name).MaxRetries(0)
	if c.AsNode != "" {
		request.Param("node", c.AsNode)
	}
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		if _, refused := errors.AsType[*apierrors.StatusError](err); refused {
			return nil, err
		}
		return nil, fmt.Errorf("no answer from the wrapper of this node; does it run, and is --server right? %w", err)
	}
	answer := &Answer{}
	if answer.Body, err = result.Raw(); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(answer.Body, &answer.Explanation); err != nil {
		return nil, fmt.Errorf("%s did not answer like a wrapper: %w", c.Server, err)
	}
	return answer, nil
}
