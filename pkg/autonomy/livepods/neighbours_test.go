package livepods

import (
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// report is a neighbour's on its pods, by their names: where they are. All are serving.
func report(pods map[string]string) map[string]*facts.LivePods {
	of := make(map[facts.PodKey]facts.LivePod)
	for name, address := range pods {
		of[facts.PodKey{Namespace: "ns", Name: name, UID: "uid-" + name}] = facts.LivePod{
			Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: true,
		}
	}
	return map[string]*facts.LivePods{"n1": {Pods: of}}
}

// newNeighbours makes a bench whose neighbour has moved its pods in an outage: one of a governed Service, another one,
// and one of a Service without topologyKeys.
func newNeighbours(t *testing.T) *bench {
	t.Helper()
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", other))
	b.slices = append(b.slices, sliceFor("two", ep{"more", "10.0.1.2", "n1", true, true}),
		sliceFor(ungoverned, ep{"third", "10.0.1.3", "n1", true, true}))
	b.api()
	b.run(60)
	b.words = report(map[string]string{"other": "10.0.1.7", "more": "10.0.1.8", "third": "10.0.1.9"})
	b.out(60)
	return b
}

// TestNeighbourMovesItsPods: its report counts in an outage, for the pods of Services with topologyKeys, and ends with
// it.
func TestNeighbourMovesItsPods(t *testing.T) {
	b := newNeighbours(t)
	b.expect("reported", "one", "10.0.1.7")
	b.expect("reported", ungoverned, "10.0.1.3")
	if s := b.keeper.Status(); s.NeighboursCorrected != 2 || !slices.Equal(s.Neighbours, []string{"n1"}) {
		t.Errorf("two pods of n1 have moved: %+v", s)
	}
	words := b.words
	b.words = nil
	b.run(1)
	b.expect("nothing is reported any more", "one", "10.0.1.1")
	b.words = words
	b.run(1)
	b.expect("reported again", "one", "10.0.1.7")
	b.state = Followed
	b.run(2)
	b.expect("the link is back", "one", "10.0.1.7")
	b.words = nil
	b.run(2)
	b.expect("the neighbour says nothing more", "one", "10.0.1.7")
	b.slices = []*discoveryv1.EndpointSlice{
		sliceFor("one", at("10.0.1.7", other)), sliceFor("two", ep{"more", "10.0.1.8", "n1", true, true}),
		sliceFor(ungoverned, ep{"third", "10.0.1.3", "n1", true, true}),
	}
	b.run(40)
	b.words = words
	b.api()
	for range 3 {
		b.run(1)
		b.expect("the API server agrees", "one", "10.0.1.7")
		b.expect("the API server agrees", ungoverned, "10.0.1.3")
	}
	if s := b.keeper.Status(); s.Used || len(s.Neighbours) > 0 || s.NeighboursCorrected > 0 {
		t.Errorf("the API server agrees, and the node's state is used: %+v", s)
	}
}

// TestAgreementOnOnePod: what the API server says of a pod on which it has agreed is shown at once, while it does not
// agree on another one.
func TestAgreementOnOnePod(t *testing.T) {
	b := newNeighbours(t)
	b.slices[0] = sliceFor("one", at("10.0.1.7", other))
	b.state = Followed
	b.api()
	b.run(40)
	b.slices[0] = sliceFor("one", at("10.0.1.17", other))
	b.api()
	b.expect("moved again", "one", "10.0.1.17")
	b.run(2)
	b.expect("not agreed on", "two", "10.0.1.8")
	b.out(1)
	b.expect("in another outage the neighbour decides again", "one", "10.0.1.7")
}

// TestNeighbourIsContradicted: two minutes after the link is back the API server is right.
func TestNeighbourIsContradicted(t *testing.T) {
	b := newNeighbours(t)
	b.state = Followed
	b.run(110)
	b.expect("it contradicts", "two", "10.0.1.8")
	b.run(20)
	b.expect("it has contradicted for two minutes", "two", "10.0.1.2")
}

// TestNeighbourClaimsAnAddress: a pod with the address of one of this node's is refused, and counted once a report.
func TestNeighbourClaimsAnAddress(t *testing.T) {
	b := newNeighbours(t)
	lie := map[string]string{"other": "10.0.0.1", "more": "10.0.1.8"}
	for i := range 2 {
		b.words = report(lie)
		b.run(2)
		b.expect("a lie", "one", "")
		b.slices[1] = sliceFor("two", ep{"more", "10.0.1.2", "n1", i == 0, i == 0}) // something else changes
		b.api()
		b.run(2)
		b.expect("no lie", "two", "10.0.1.8")
	}
	if !slices.Equal(b.refused, []int{1, 1}) {
		t.Errorf("one pod in each of two reports has another's address, and refused were %v", b.refused)
	}
}
