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
	"github.com/application-grid/application-grid/pkg/quota"
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
	// requestsToFollow is what one source asks of a replica that it was not at before: its watch, which is answered
	// 410, a list, and a watch from there.
	requestsToFollow = 3
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
// endpoint in its unit of ten nodes.
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
			Name: "node-" + strconv.Itoa(i), UID: uid(4, i), Labels: map[string]string{"zone": "unit-1"},
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

// simulatedReplica is one of the hub: it bounds the memory of lists, and sends one after the other until busy.
type simulatedReplica struct {
	memory *quota.Quota
	busy   time.Duration
	// sending are the lists that are being sent, each with how many are sent it, and what gives its memory back.
	sending map[string]*sending
}

type sending struct {
	users   int
	release func()
}

// send sends a list to one more, and calls sent when that has happened. It reports whether there is memory for it,
// which the list takes once, however many are sent it.
func (r *simulatedReplica) send(in *hubReturn, caller, name string, list listSize, sent func()) bool {
	one := r.sending[name]
	if one == nil {
		release, ok := r.memory.AcquireN(caller, list.memory)
		if !ok {
			return false
		}
		one = &sending{release: release}
		r.sending[name] = one
	}
	one.users++
	r.busy = max(in.now, r.busy) + time.Duration(list.sent)*time.Second/hubLink
	in.at(r.busy, func() {
		if one.users--; one.users == 0 {
			one.release()
			delete(r.sending, name)
		}
		sent()
	})
	return true
}

// hubReturn is the return of a fleet to its hub, in virtual time.
type hubReturn struct {
	lists    []listSize
	agenda   agenda
	now      time.Duration
	replicas [hubReplicas]simulatedReplica
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

// returning is a wrapper that does not follow everything yet.
type returning struct {
	number int
	pause  func() time.Duration
	// wanted are the lists, by their places, that it has not been sent yet; left is how many of them are not sent.
	wanted []int
	left   int
}

// name is that of one of a wrapper's lists: Services are the same for all, slices and nodes for its class.
func (w *returning) name(list int) string {
	switch list {
	case 0:
		return "all"
	case 1, 2:
		return fmt.Sprint("class ", w.number/hubNodesOfAClass, " ", list)
	default:
		return fmt.Sprint("own ", w.number)
	}
}

// begin lets a wrapper fail until the outage is over, and then ask until it has everything.
func (r *hubReturn) begin(number int, outage time.Duration) {
	w := &returning{number: number, pause: follow.Pauses(), left: len(r.lists)}
	at := time.Duration(0)
	for at < outage {
		at += w.pause()
	}
	for list := range r.lists {
		w.wanted = append(w.wanted, list)
	}
	// The first answer makes the next pause a short one.
	w.pause = follow.Pauses()
	r.at(at-outage, func() { r.attempt(w) })
}

// attempt is one of all sources of a wrapper that do not follow yet, which go on together after a pause.
func (r *hubReturn) attempt(w *returning) {
	replica := &r.replicas[rand.IntN(hubReplicas)]
	var refused []int
	for _, list := range w.wanted {
		r.requests.add(r.now, requestsToFollow-1)
		size := r.lists[list]
		ok := replica.send(r, strconv.Itoa(w.number), w.name(list), size, func() {
			r.requests.add(r.now, 1)
			r.sent.add(r.now, size.sent)
			if w.left--; w.left == 0 {
				r.ready = append(r.ready, r.now)
			}
		})
		if !ok {
			r.refused.add(r.now, 1)
			refused = append(refused, list)
		}
	}
	if w.wanted = refused; len(refused) > 0 {
		r.at(r.now+max(w.pause(), hubRetryAfter), func() { r.attempt(w) })
	}
}

// TestFleetReturnsToTheHub simulates how 10,000 wrappers return to two replicas of a hub that were away for a minute,
// with the backoff, the bound of memory and the sizes of lists that there are; docs/hub.md and docs/limits.md quote
// what it prints (go test -v -run FleetReturnsToTheHub ./pkg/follow).
func TestFleetReturnsToTheHub(t *testing.T) {
	t.Parallel()
	r := &hubReturn{lists: shareLists(t)}
	for i := range r.replicas {
		r.replicas[i] = simulatedReplica{memory: quota.New(hub.DefaultMaxListBytes), sending: map[string]*sending{}}
	}
	var memory, sent int
	for _, list := range r.lists {
		memory += list.memory
		sent += list.sent
	}
	t.Logf("the lists of a share: %d kB, compressed %d kB", memory/1000, sent/1000)
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
		t.Fatalf("%d wrappers are ready", len(r.ready))
	}
	refused := 0
	for _, n := range r.refused {
		refused += n
	}
	half, all := r.ready[hubWrappers/2], r.ready[hubWrappers-1]
	requests, megabytes := slices.Max(r.requests), slices.Max(r.sent)/1_000_000
	t.Logf("half of the wrappers are ready within %.0f s, all within %.0f s; %d lists were answered 429",
		half.Seconds(), all.Seconds(), refused)
	t.Logf("the busiest second: %d requests; %d MB sent", requests, megabytes)
	t.Logf("requests, second by second: %d", r.requests)
	// Without lists that are shared while they are sent, it would be 25,000, most of them answered 429.
	if most := 2 * hubWrappers; requests > most {
		t.Errorf("%d requests in one second, more than %d", requests, most)
	}
	if most := 2 * hubReplicas * hubLink / 1_000_000; megabytes > most {
		t.Errorf("%d MB in one second, more than %d", megabytes, most)
	}
	if most := 5 * time.Minute; all > most {
		t.Errorf("the last wrapper is ready after %s, not within %s", all, most)
	}
}
