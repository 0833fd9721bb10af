package workload

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
)

// Answer is who answered a request.
type Answer struct{ Node, Pod string }

// Source is where requests come from: a node of any kind of cluster.
type Source interface {
	// Name is the node's name.
	Name() string
	// Get requests a URL from the node's network, on a new connection.
	Get(ctx context.Context, url string) (*cluster.Reply, error)
}

// Ask requests the URL of an echo Service once, from the node's namespace on a new connection. An error means
// that nobody answered.
func Ask(ctx context.Context, from Source, url string) (Answer, error) {
	reply, err := from.Get(ctx, url)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	if _, err := fmt.Sscanf(reply.Body, "node=%s pod=%s", &answer.Node, &answer.Pod); err != nil {
		return Answer{}, fmt.Errorf("%s was answered by something else than an echo pod: %q", url, reply.Body)
	}
	return answer, nil
}

// Reached counts who answered, by node name; refused connections count under Refused.
type Reached map[string]int

// lookTimeout limits one request of a look. It is short because a connection that began before the rules were
// there never follows them.
const lookTimeout = time.Second

// Refused is the key of Reached for requests that nobody answered.
const Refused = "(refused)"

// Reach requests the Service's cluster IP a number of times from a node's namespace, each time on a new
// connection, and counts which nodes' pods answered.
func Reach(ctx context.Context, from *cluster.Node, service *corev1.Service, tries int) Reached {
	reached := Reached{}
	look(ctx, from, service, tries, func(answer Answer, err error) {
		if err != nil {
			answer.Node = Refused
		}
		reached[answer.Node]++
	})
	return reached
}

// Tries is how many requests make out whom a Service reaches. With four endpoints all of them are seen with a
// probability of 99.9 %; if not, the next look asks again.
const Tries = 30

// lookPause is the time between two looks of AwaitReach.
const lookPause = 20 * time.Millisecond

// AwaitReach looks, with this many tries each time, until the node reaches exactly the nodes of want: their names
// in order, separated by spaces, or "" for nobody. If ctx ends before, the error says whom it reached last.
func AwaitReach(ctx context.Context, from *cluster.Node, service *corev1.Service, want string, tries int) error {
	if want == "" {
		want = Refused
	}
	err := await.NoError(ctx, lookPause, func(ctx context.Context) error {
		if seen := strings.Join(Reach(ctx, from, service, tries).Nodes(), " "); seen != want {
			return fmt.Errorf("got %s", seen)
		}
		return ctx.Err() // what a look that was cut off has seen means nothing
	})
	if err != nil {
		return fmt.Errorf("from %s: want %s: %w", from.Spec.Name, want, err)
	}
	return nil
}

// ReachPods is Reach by pod; requests that nobody answered are not counted.
func ReachPods(ctx context.Context, from *cluster.Node, service *corev1.Service, tries int) map[string]int {
	reached := map[string]int{}
	look(ctx, from, service, tries, func(answer Answer, err error) {
		if err == nil {
			reached[answer.Pod]++
		}
	})
	return reached
}

func look(ctx context.Context, from *cluster.Node, service *corev1.Service, tries int, count func(Answer, error)) {
	url := URL(service)
	for range tries {
		attempt, cancel := context.WithTimeout(ctx, lookTimeout)
		count(Ask(attempt, from, url))
		cancel()
	}
}

// URL is the URL of an echo Service.
func URL(service *corev1.Service) string {
	return fmt.Sprintf("http://%s:%d/", service.Spec.ClusterIP, Port)
}

// Nodes are the nodes that answered, in order.
func (r Reached) Nodes() []string {
	nodes := make([]string, 0, len(r))
	for node := range r {
		nodes = append(nodes, node)
	}
	sort.Strings(nodes)
	return nodes
}

// Count is how often the node answered, as text for a table.
func (r Reached) Count(node string) string {
	if r[node] == 0 {
		return "·"
	}
	return strconv.Itoa(r[node])
}
