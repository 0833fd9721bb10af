package follow_test

import (
	"bytes"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/hub"
	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	hubWrappers = 10_000
	hubReplicas = 2
	// hubLink is how many bytes a second a replica can send: a gigabit.
	hubLink = 125_000_000
	// hubNodesOfAClass are as many nodes as have the same share.
	hubNodesOfAClass = 10
	// hubRetryAfter is what an answer says for which the hub had no memory.
	hubRetryAfter = serve.RetryAfter
	// hubDiffers is about what a wrapper is sent that has nearly everything: a few buckets.
	hubDiffers = 10_000
	// hubPatience is how long a wrapper waits for an answer.
	hubPatience = 30 * time.Second
)

// listSize is a list as the hub has it in its memory, and as it sends it.
type listSize struct{ memory, sent int }

func sizeOf(t *testing.T, list interface{ Marshal() ([]byte, error) }) listSize {
	t.Helper()
	raw, err := list.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return listSize{len(raw), compressed.Len()}
}

// shareLists are the lists of one node's share in a cluster of 20,000 governed Services, of which a thousand have an
// endpoint in its site of ten nodes.
func shareLists(t *testing.T) []listSize {
	t.Helper()
	uid := func(kind, i int) types.UID {
		return types.UID(fmt.Sprintf("%08x-%04x-4%03x-9%03x-%012x",
			rand.Uint32(), kind, i%4096, i%4095, rand.Uint64()>>16))
	}
	made := metav1.NewTime(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	var services corev1.ServiceList
	for i := range 20_000 {
		name := fmt.Sprintf("svc-%05d", i)
		ip := fmt.Sprintf("10.%d.%d.%d", 96+i/65536, i/256%256, i%256)
		services.Items = append(services.Items, corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: uid(1, i), CreationTimestamp: made,
				ResourceVersion: strconv.Itoa(100_000 + i),
				Labels: map[string]string{
					"superedge.io/grid-selector": name, "superedge.io/grid-uniq-key": "zone",
				},
				Annotations: map[string]string{"topologyKeys": `["zone"]`},
			},
			Spec: corev1.ServiceSpec{
				ClusterIP: ip, ClusterIPs: []string{ip}, Type: corev1.ServiceTypeClusterIP,
				Selector:        map[string]string{"app": name},
				SessionAffinity: corev1.ServiceAffinityNone, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
				Ports:          []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
			},
		})
	}
	var endpoints discoveryv1.EndpointSliceList
	for i := range 1000 {
		name := fmt.Sprintf("svc-%05d", 20*i)
		endpoints.Items = append(endpoints.Items, discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name + "-" + strconv.FormatUint(rand.Uint64N(60_000_000), 36), UID: uid(2, i),
				CreationTimestamp: made, ResourceVersion: strconv.Itoa(500_000 + i),
				Labels: map[string]string{
					discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
					"superedge.io/grid-selector": name, "superedge.io/grid-uniq-key": "zone",
				},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{fmt.Sprintf("10.1.%d.%d", i/256, i%256)},
				NodeName:   ptr.To("node-" + strconv.Itoa(i%10)),
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
				TargetRef: &corev1.ObjectReference{
					Kind: "Pod", Namespace: "shop", Name: name + "-x7k2p", UID: uid(3, i),
				},
			}},
		})
	}
	var nodes corev1.NodeList
	for i := range 10 {
		nodes.Items = append(nodes.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "node-" + strconv.Itoa(i), UID: uid(4, i), Labels: map[string]string{"zone": "site-1"},
		}})
	}
	return []listSize{sizeOf(t, &services), sizeOf(t, &endpoints), sizeOf(t, &nodes), {10_000, 10_000}}
}

// happening is something that happens at a time.
type happening struct {
	at time.Duration
	do func()
}

// agenda is what is to happen, the next first. It implements heap.Interface.
type agenda []happening

func (a *agenda) Len() int           { return len(*a) }
func (a *agenda) Less(i, j int) bool { return (*a)[i].at < (*a)[j].at }
func (a *agenda) Swap(i, j int)      { (*a)[i], (*a)[j] = (*a)[j], (*a)[i] }

func (a *agenda) Push(x any) {
	if h, ok := x.(happening); ok {
		*a = append(*a, h)
	}
}

func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// simulatedReplica is one of the hub: it bounds the memory of what it has not sent, and sends one thing after the other
// until busy. Reviews are asked one after the other until reviewed.
type simulatedReplica struct {
	users          map[string]int
	memory         int
	busy, reviewed time.Duration
}

// send sends some parts of a share to one more, and calls sent when that has happened. It reports whether there is
// memory for them. A part takes it once, however many are sent it.
func (r *simulatedReplica) send(in *hubReturn, parts map[string]int, sent func()) bool {
	more, all := 0, 0
	for name, size := range parts {
		all += size
		if r.users[name] == 0 {
			more += size
		}
	}
	if r.memory+more > hub.DefaultMaxQueuedBytes {
		return false
	}
	r.memory += more
	for name := range parts {
		r.users[name]++
	}
	r.busy = max(in.now, r.busy, r.reviewed) + time.Duration(all)*time.Second/hubLink
	in.at(r.busy, func() {
		for name, size := range parts {
			if r.users[name]--; r.users[name] == 0 {
				r.memory -= size
			}
		}
		sent()
	})
	return true
}

// hubReturn is the return of a fleet to its hub, in virtual time.
type hubReturn struct {
	agenda   agenda
	now      time.Duration
	replicas [hubReplicas]*simulatedReplica
	// reviewEach is how long a review of a request takes; 0 if there is none.
	reviewEach time.Duration
	// parts are those of the share that a wrapper is sent.
	parts func(wrapper int) map[string]int
	// requests, refused and sent count by the second; sent counts bytes.
	requests, refused, sent perSecond
	ready                   []time.Duration
}

type perSecond []int

func (s *perSecond) add(at time.Duration, n int) {
	for len(*s) <= int(at/time.Second) {
		*s = append(*s, 0)
	}
	(*s)[at/time.Second] += n
}

func (r *hubReturn) at(at time.Duration, do func()) { heap.Push(&r.agenda, happening{at, do}) }

// begin lets a wrapper fail until the outage is over, and then ask until it has everything.
func (r *hubReturn) begin(number int, outage time.Duration) {
	pause := follow.Pauses(rand.Float64)
	at := time.Duration(0)
	for at < outage {
		at += pause()
	}
	r.at(at-outage, func() { r.attempt(number, pause) })
}

// attempt is one of a wrapper that does not follow its share yet.
func (r *hubReturn) attempt(number int, pause func() time.Duration) {
	replica := r.replicas[rand.IntN(hubReplicas)]
	r.requests.add(r.now, 1)
	replica.reviewed = max(replica.reviewed, r.now) + r.reviewEach
	parts := r.parts(number)
	ok := replica.reviewed-r.now < hubPatience && replica.send(r, parts, func() {
		for _, size := range parts {
			r.sent.add(r.now, size)
		}
		r.ready = append(r.ready, r.now)
	})
	if !ok {
		r.refused.add(r.now, 1)
		r.at(r.now+max(pause(), hubRetryAfter), func() { r.attempt(number, pause) })
	}
}

// TestFleetReturnsToTheHub simulates how 10,000 wrappers return to two replicas of a hub that were away for a minute,
// with the backoff, the bound of memory and the sizes of shares that there are: with what they had before, from
// nothing, and with a review of every request, of which the API server is asked 200 a second. docs/hub.md and
// docs/compatibility.md quote what it prints (go test -v -run FleetReturnsToTheHub ./pkg/follow).
func TestFleetReturnsToTheHub(t *testing.T) {
	t.Parallel()
	lists := shareLists(t)
	whole := func(number int) map[string]int {
		return map[string]int{
			"all": lists[0].sent, fmt.Sprint("class ", number/hubNodesOfAClass): lists[1].sent + lists[2].sent,
			fmt.Sprint("own ", number): lists[3].sent,
		}
	}
	differs := func(number int) map[string]int { return map[string]int{fmt.Sprint("own ", number): hubDiffers} }
	for _, test := range []struct {
		name  string
		parts func(int) map[string]int
		each  time.Duration
		most  time.Duration
	}{
		{"with what they had", differs, 0, time.Minute}, {"from nothing", whole, 0, 5 * time.Minute},
		{"with reviews", differs, 5 * time.Millisecond, 5 * time.Minute},
	} {
		r := &hubReturn{parts: test.parts, reviewEach: test.each}
		for i := range r.replicas {
			r.replicas[i] = &simulatedReplica{users: make(map[string]int)}
		}
		for i := range hubWrappers {
			r.begin(i, time.Minute)
		}
		for len(r.agenda) > 0 {
			if next, ok := heap.Pop(&r.agenda).(happening); ok {
				r.now = next.at
				next.do()
			}
		}
		slices.Sort(r.ready)
		if len(r.ready) != hubWrappers {
			t.Fatalf("%s: %d wrappers are ready", test.name, len(r.ready))
		}
		refused := 0
		for _, n := range r.refused {
			refused += n
		}
		half, all := r.ready[hubWrappers/2], r.ready[hubWrappers-1]
		t.Logf("%s: half of the wrappers follow within %.0f s, all within %.0f s; %d were answered 429; "+
			"the busiest second has %d requests, and %d MB are sent", test.name, half.Seconds(), all.Seconds(), refused,
			slices.Max(r.requests), slices.Max(r.sent)/1_000_000)
		if all > test.most {
			t.Errorf("%s: the last wrapper follows after %s, not within %s", test.name, all, test.most)
		}
	}
}
