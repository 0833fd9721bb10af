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

// ask polls the health service once, and returns for each node whether it is dead. The service answers
// {"node": {"normal": true}}, where a node is a name or an IP address. Other fields are ignored, and so is a node
// without normal.
func (p *Poller) ask(ctx context.Context) (nodes map[string]bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.config.Address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s, not 200", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("its answer has more than %d bytes", maxBody)
	}
	var answer map[string]struct {
		Normal *bool `json:"normal"`
	}
	err = json.Unmarshal(body, &answer)
	if err == nil && answer == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return nil, fmt.Errorf(`its answer is not JSON of the form {"node": {"normal": true}}: %w`, err)
	}
	nodes = make(map[string]bool, len(answer))
	for key, node := range answer {
		nodes[key] = node.Normal != nil && !*node.Normal
	}
	return nodes, nil
}
