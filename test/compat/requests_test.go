package compat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
)

// What the wrapper says about the requests it answered: its metric counts them by code, its log at --v=4 has each
// with the client's name. A watch is counted and logged when it ends.

var requestSeries = regexp.MustCompile(`^application_grid_wrapper_requests_total\{code="(\d+)",resource="([^"]*)",verb="([^"]*)"\} (\d+)$`)

// answer is a kind of request of the metric, and the code of its answer.
type answer struct {
	resource, verb string
	code           int
}

func (a answer) String() string { return fmt.Sprintf("%s %s answered %d", a.verb, a.resource, a.code) }

// answers reads the metric of a node's wrapper. Requests for other resources are left out: they are this test's
// questions for readiness and metrics.
func answers(ctx context.Context, node *cluster.Node) (map[answer]int, error) {
	client, err := kubernetes.NewForConfig(node.WrapperConfig(cluster.RoleNobody))
	if err != nil {
		return nil, err
	}
	body, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("the wrapper's metrics: %w", err)
	}
	counted := map[answer]int{}
	for line := range strings.Lines(string(body)) {
		match := requestSeries.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil || match[2] == "other" {
			continue
		}
		code, err := strconv.Atoi(match[1])
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		count, err := strconv.Atoi(match[4])
		if err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
		counted[answer{resource: match[2], verb: match[3], code: code}] = count
	}
	if len(counted) == 0 {
		return nil, fmt.Errorf("the wrapper's metric has no request: %d bytes", len(body))
	}
	return counted, nil
}

// unexpected are the answers with a code that a client in good health does not get.
func unexpected(counted map[answer]int, expected ...int) []string {
	var found []string
	for a, count := range counted {
		if !slices.Contains(expected, a.code) {
			found = append(found, fmt.Sprintf("%s (%d times)", a, count))
		}
	}
	slices.Sort(found)
	return found
}

// request is a line of the wrapper's log.
type request struct {
	verb, uri, userAgent string
	code                 int
}

var requestLine = regexp.MustCompile(`"Request".* verb="([^"]*)" uri="([^"]*)" code=(\d+) .*userAgent="([^"]*)"`)

// logged reads the requests from the log of a node's wrapper that are of clients whose name begins so.
func logged(node *cluster.Node, client string) ([]request, error) {
	log, err := os.Open(node.Wrapper.LogFile())
	if err != nil {
		return nil, fmt.Errorf("reading the wrapper's log: %w", err)
	}
	defer log.Close()
	var found []request
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		match := requestLine.FindStringSubmatch(lines.Text())
		if match == nil || !strings.HasPrefix(match[4], client) {
			continue
		}
		code, err := strconv.Atoi(match[3])
		if err != nil {
			return nil, fmt.Errorf("reading the wrapper's log: %w", err)
		}
		found = append(found, request{verb: match[1], uri: match[2], userAgent: match[4], code: code})
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the wrapper's log: %w", err)
	}
	return found, nil
}

// changing are the parts of a request that differ from one time to the next.
var changing = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`timeout=[0-9hms]+`), "timeout=…"},
	{regexp.MustCompile(`timeoutSeconds=\d+`), "timeoutSeconds=…"},
	{regexp.MustCompile(`resourceVersion=[1-9]\d*`), "resourceVersion=…"},
	{regexp.MustCompile(`metadata\.name%3D[a-z0-9-]+`), "metadata.name%3DNODE"},
	{regexp.MustCompile(`/nodes/[a-z0-9-]+`), "/nodes/NODE"},
	{regexp.MustCompile(`(/events/)[a-z0-9.-]+`), "${1}EVENT"},
}

// kinds are the kinds of the requests: what changes from one time to the next is taken out, and each stands once,
// with all codes of its answers. Whether one met a wrapper that was about to start is left out.
func kinds(requests []request) []string {
	codes := map[string][]string{}
	for _, r := range requests {
		if r.code == http.StatusServiceUnavailable {
			continue
		}
		kind := r.verb + " " + r.uri
		for _, c := range changing {
			kind = c.pattern.ReplaceAllString(kind, c.with)
		}
		if code := strconv.Itoa(r.code); !slices.Contains(codes[kind], code) {
			codes[kind] = append(codes[kind], code)
		}
	}
	var lines []string
	for kind, answered := range codes {
		slices.Sort(answered)
		lines = append(lines, kind+"  "+strings.Join(answered, " "))
	}
	slices.Sort(lines)
	return lines
}

// speaks checks that the requests are of this protocol, and were answered as a restarted wrapper may: a client whose
// streamed list fails falls back to LIST, and would work without doing what the table says.
func speaks(protocol cluster.Protocol, requests []request) error {
	lists, streams := 0, 0
	for _, r := range requests {
		if !slices.Contains(restartedCodes, r.code) {
			return fmt.Errorf("%s %s was answered %d", r.verb, r.uri, r.code)
		}
		switch {
		case r.verb == "list":
			lists++
		case strings.Contains(r.uri, "sendInitialEvents=true"):
			streams++
		}
	}
	switch {
	case len(requests) == 0:
		return errors.New("the wrapper's log has none of its requests")
	case protocol == cluster.WatchList && (lists > 0 || streams == 0), protocol == cluster.ListThenWatch &&
		(lists == 0 || streams > 0):
		return fmt.Errorf("does not use %s: %d lists, %d streamed lists", protocol, lists, streams)
	}
	return nil
}
