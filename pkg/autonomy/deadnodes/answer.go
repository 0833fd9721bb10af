package deadnodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxBody is the largest size of an answer in bytes. An answer about 10,000 nodes is smaller.
const maxBody = 1 << 20

// Results of a poll: the values of the metric's label.
const (
	resultOK = "ok"
	// resultUnreachable is a connection that could not be opened, or that broke.
	resultUnreachable = "unreachable"
	// resultTimeout is an answer that was not complete in time.
	resultTimeout = "timeout"
	// resultStatus is a status other than 200.
	resultStatus = "status"
	// resultInvalid is a body that is too large, or not the expected JSON.
	resultInvalid = "invalid"
)

// answer is the result of a poll.
type answer struct {
	result string
	// err is why no valid answer arrived; nil with resultOK.
	err error
	// nodes has for each node, which is a name or an address, whether it is dead.
	nodes map[string]bool
}

// ask polls the health service once. The service answers {"node": {"normal": true}}, where a node is a name or an IP
// address.
func (p *Poller) ask(ctx context.Context) answer {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.config.Address, nil)
	if err != nil {
		return answer{result: resultUnreachable, err: err}
	}
	request.Header.Set("Accept", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return answer{result: resultUnreachable, err: err}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return answer{result: resultStatus, err: fmt.Errorf("it answers %s, not 200", response.Status)}
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return answer{result: resultUnreachable, err: fmt.Errorf("reading its answer: %w", err)}
	}
	// Other fields of {"node": {"normal": true}} are ignored, and so is a node without normal.
	if len(body) > maxBody {
		return answer{result: resultInvalid, err: fmt.Errorf("its answer has more than %d bytes", maxBody)}
	}
	var nodes map[string]struct {
		Normal *bool `json:"normal"`
	}
	err = json.Unmarshal(body, &nodes)
	if err == nil && nodes == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return answer{
			result: resultInvalid,
			err:    fmt.Errorf(`its answer is not JSON of the form {"node": {"normal": true}}: %w`, err),
		}
	}
	a := answer{result: resultOK, nodes: make(map[string]bool, len(nodes))}
	for key, node := range nodes {
		a.nodes[key] = node.Normal != nil && !*node.Normal
	}
	return a
}
