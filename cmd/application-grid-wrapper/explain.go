package main

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
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// explainCommand asks a running wrapper why this node sees of a Service what it sees.
type explainCommand struct {
	service  string
	server   string
	asNode   string
	output   string
	caFile   string
	certFile string
	keyFile  string
	timeout  time.Duration
}

const explainIntroduction = `application-grid-wrapper explain asks the running wrapper of this node which endpoints of a Service this node
sees, which it does not, and why.

Usage:
  application-grid-wrapper explain NAMESPACE/SERVICE [flags]

It exits with 0 if there is an answer, whatever that says, with 1 if there is none (the wrapper does not run,
there is no such Service), and with 2 if the command line is wrong.

Flags:
`

// flags are those of the command line.
func (c *explainCommand) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet("explain", pflag.ContinueOnError)
	f.SortFlags = false
	f.Usage = func() {}
	f.StringVar(&c.server, "server", "http://localhost:51006", "URL of the wrapper.")
	f.StringVar(&c.asNode, "as-node", "", "Name of the node whose view is explained. Empty: the wrapper's own.")
	f.StringVarP(&c.output, "output", "o", "table", "table or json.")
	f.StringVar(&c.caFile, "ca-file", "", "PEM file of the certificates that sign the wrapper's, if it serves TLS.")
	f.StringVar(&c.certFile, "cert-file", "", "PEM file of a client certificate, if the wrapper wants one.")
	f.StringVar(&c.keyFile, "key-file", "", "PEM file of its key.")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "How long an answer may take.")
	return f
}

// runExplain returns the exit code.
func runExplain(args []string, stdout, stderr io.Writer) int {
	c := &explainCommand{}
	return subcommand{
		name: "explain", introduction: explainIntroduction, flags: c.flags(), check: c.check,
		run: func() error { return c.run(stdout) },
	}.main(args, stdout, stderr)
}

func (c *explainCommand) check(args []string) error {
	if len(args) != 1 {
		return errors.New("one argument is needed: NAMESPACE/SERVICE")
	}
	namespace, name, found := strings.Cut(args[0], "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not NAMESPACE/SERVICE", args[0])
	}
	c.service = url.PathEscape(namespace) + "/" + url.PathEscape(name)
	if c.output != "table" && c.output != "json" {
		return fmt.Errorf("--output %q is neither table nor json", c.output)
	}
	server, err := url.Parse(c.server)
	if err != nil || server.Host == "" || (server.Scheme != "http" && server.Scheme != "https") {
		return fmt.Errorf("--server %q is not a URL such as http://localhost:51006", c.server)
	}
	if (c.certFile == "") != (c.keyFile == "") {
		return errors.New("--cert-file and --key-file go together")
	}
	return nil
}

func (c *explainCommand) run(stdout io.Writer) error {
	body, err := c.ask()
	if err != nil {
		return err
	}
	var explanation view.Explanation
	if err := json.Unmarshal(body, &explanation); err != nil {
		return fmt.Errorf("%s did not answer like a wrapper: %w", c.server, err)
	}
	if c.output == "json" {
		_, err := stdout.Write(body)
		return err
	}
	return printExplanation(stdout, &explanation)
}

func (c *explainCommand) ask() ([]byte, error) {
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	address := strings.TrimSuffix(c.server, "/") + "/debug/explain/" + c.service
	if c.asNode != "" {
		address += "?node=" + url.QueryEscape(c.asNode)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
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
		return nil, fmt.Errorf("%s answered %s", c.server, response.Status)
	}
	return body, nil
}

func (c *explainCommand) client() (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file %s has no certificate in PEM", c.caFile)
		}
	}
	if c.certFile != "" {
		certificate, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert-file, --key-file: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	// No proxy of the environment's: the wrapper is on this node.
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config}}, nil
}

func printExplanation(to io.Writer, e *view.Explanation) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "Service:\t%s/%s\n", e.Namespace, e.Service)
	fmt.Fprintf(w, "Seen from node:\t%s\n", e.Node)
	switch {
	case e.Invalid != "":
		fmt.Fprintf(w, "topologyKeys:\t%s\n", e.Invalid)
	case len(e.TopologyKeys) == 0:
		fmt.Fprint(w, "topologyKeys:\tnone: every node sees all endpoints\n")
	default:
		fmt.Fprintf(w, "topologyKeys:\t%s%s\n", strings.Join(e.TopologyKeys, ", "), from(e.Annotation))
		var unit []string
		for _, key := range e.TopologyKeys {
			if value, ok := e.Unit[key]; ok {
				unit = append(unit, key+"="+value)
			}
		}
		fmt.Fprintf(w, "Its unit:\t%s\n", orNone(strings.Join(unit, ", ")))
		fmt.Fprintf(w, "Deciding key:\t%s\n", orNone(e.DecidingKey))
	}
	fmt.Fprintf(w, "Endpoints:\t%d kept, %d hidden\n", e.Kept, e.Hidden)
	for _, note := range e.Notes {
		fmt.Fprintf(w, "Note:\t%s\n", note)
	}
	if err := w.Flush(); err != nil || len(e.Endpoints) == 0 {
		return err
	}
	slices.SortStableFunc(e.Endpoints, func(a, b view.ExplainedEndpoint) int {
		switch {
		case a.Kept == b.Kept:
			return 0
		case a.Kept:
			return -1
		default:
			return 1
		}
	})
	fmt.Fprint(w, "\nADDRESS\tTARGET\tNODE\tREADY\tVIEW\tREASON\n")
	for _, x := range e.Endpoints {
		view := "hidden"
		if x.Kept {
			view = "kept"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%t\t%s\t%s\n", strings.Join(x.Addresses, ","), orNone(x.Target), orNone(x.Node), x.Ready, view, x.Reason)
	}
	return w.Flush()
}

// from names the annotation that says the keys, where that is not topologyKeys.
func from(annotation string) string {
	if annotation == "" || annotation == v1.AnnotationTopologyKeys { // an older wrapper does not say
		return ""
	}
	return " (annotation " + annotation + ")"
}

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}
