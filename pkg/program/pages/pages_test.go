package pages

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodes is an API server with this many nodes. It forgets a list's revision before the pages in expires, once each.
type nodes struct {
	client.Client

	count   int
	expires map[int]int
	// newer is the token with which a list that has expired goes on; empty for one of its own each time.
	newer string
	// limits are those of the requests.
	limits []int64
}

func (n *nodes) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	var set client.ListOptions
	set.ApplyOptions(options)
	n.limits = append(n.limits, set.Limit)
	position, _, _ := strings.Cut(set.Continue, " ")
	first, _ := strconv.Atoi(position)
	if n.expires[first] > 0 {
		n.expires[first]--
		expired := apierrors.NewResourceExpired("the revision is compacted")
		expired.ErrStatus.Continue = n.newer
		if n.newer == "" {
			expired.ErrStatus.Continue = set.Continue + " newer"
		}
		return expired
	}
	page := list.(*corev1.NodeList)
	last := min(n.count, first+int(set.Limit))
	if set.Limit == 0 {
		last = n.count
	}
	for i := first; i < last; i++ {
		page.Items = append(page.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}})
	}
	if last < n.count {
		page.Continue = strconv.Itoa(last)
	}
	return nil
}

func TestList(t *testing.T) {
	for _, test := range []struct {
		name     string
		count    int
		expires  map[int]int
		requests int
	}{
		{"none", 0, nil, 1},
		{"one page", 3, nil, 1},
		{"a full page", Size, nil, 1},
		{"pages", 2*Size + 1, nil, 3},
		{"a list that expires goes on", 2*Size + 1, map[int]int{2 * Size: 1}, 4},
		{"and again", 2*Size + 1, map[int]int{Size: 1, 2 * Size: 1}, 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := &nodes{count: test.count, expires: test.expires}
			var list corev1.NodeList
			if err := (Client{server}).List(t.Context(), &list); err != nil {
				t.Fatal(err)
			}
			if len(list.Items) != test.count {
				t.Fatalf("got %d of %d nodes", len(list.Items), test.count)
			}
			for i, node := range list.Items {
				if node.Name != fmt.Sprint("n", i) {
					t.Fatalf("node %d is %s", i, node.Name)
				}
			}
			if len(server.limits) != test.requests {
				t.Errorf("%d requests, not %d", len(server.limits), test.requests)
			}
			for _, limit := range server.limits {
				if limit != Size {
					t.Errorf("a request asked for %d objects", limit)
				}
			}
		})
	}
}

// TestExpiresAlways: a list that expires again and again is an error, and no loop.
func TestExpiresAlways(t *testing.T) {
	server := &nodes{count: 2 * Size, expires: map[int]int{Size: 1000}, newer: "500 newer"}
	err := (Client{server}).List(t.Context(), &corev1.NodeList{})
	if !apierrors.IsResourceExpired(err) || len(server.limits) != 3 {
		t.Errorf("got %v after %d requests", err, len(server.limits))
	}
}

// TestOwnLimit: who sets a limit reads the pages itself.
func TestOwnLimit(t *testing.T) {
	server := &nodes{count: 10}
	var list corev1.NodeList
	if err := (Client{server}).List(t.Context(), &list, client.Limit(4)); err != nil || len(list.Items) != 4 ||
		list.Continue != "4" {
		t.Errorf("got %d nodes, %v", len(list.Items), err)
	}
}
