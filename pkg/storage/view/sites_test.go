package view_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// use is what a site is served from, until release is called.
func use(t *testing.T, s *storagetest.Node, site string) (h *history.History, release func()) {
	t.Helper()
	h, release, err := s.Sites.History(site)
	if err != nil {
		t.Fatal(err)
	}
	return h, release
}

// siteHistory is what a site is served from, until the test ends.
func siteHistory(t *testing.T, s *storagetest.Node, site string) *history.History {
	t.Helper()
	h, release := use(t, s, site)
	t.Cleanup(release)
	return h
}

// TestSiteView: what a named site sees, and that an empty one, or one without nodes, sees nothing.
func TestSiteView(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	for name, keys := range map[string]string{
		"free": "", "strict": `["zone"]`, "ordered": `["rack","zone","*"]`, "broken": `zone`,
	} {
		s.Services().Apply(wiretest.Service(name, keys))
		s.EndpointSlices().Apply(wiretest.Slice(name+"-1", name, "node-a2", "node-b1", "node-b2"))
	}
	expect := func(site, service, want string) {
		t.Helper()
		if got := nodesShown(t, siteHistory(t, s, site), service+"-1"); got != want {
			t.Errorf("site %q, %s: got %q, want %q", site, service, got, want)
		}
	}
	all := "node-a2,node-b1,node-b2"
	for _, site := range []string{"a", "b", "c", ""} {
		want := map[string]string{"a": "node-a2", "b": "node-b1,node-b2"}[site]
		expect(site, "free", all)
		expect(site, "strict", want)
		expect(site, "ordered", want)
		expect(site, "broken", "")
	}
	if got := nodesShown(t, s.History, "strict-1"); got != "node-a2" {
		t.Errorf("this node sees %q", got)
	}
	// A node that moves into a site that had no nodes, which is then like any other.
	s.NodeLabels().Apply(wiretest.Node("node-b2", "c"))
	expect("c", "strict", "node-b2")
	expect("b", "strict", "node-b1")
	s.NodeLabels().Apply(wiretest.Node("node-a1", "d"))
	expect("d", "strict", "")
	expect("d", "ordered", all)
	s.NodeLabels().Remove("", "node-a1")
	expect("d", "ordered", "")
	s.SetDoubted(facts.Dead, map[string]struct{}{"node-b1": {}})
	expect("b", "strict", "node-b1") // it has nothing better
	expect("b", "free", "node-a2,node-b2")
	s.SetDoubted(facts.Dead, nil)
	expect("b", "strict", "node-b1")
}

// siteViews are those of a store with as many sites in use as there may be, "0" and so on, and a site "one more".
type siteViews struct {
	*testing.T
	*storagetest.Node

	histories map[string]*history.History
	releases  map[string]func()
}

func newSiteViews(t *testing.T) *siteViews {
	t.Helper()
	u := &siteViews{t, syncedStore(t, storagetest.Options{}), map[string]*history.History{}, map[string]func(){}}
	u.Services().Apply(wiretest.Service("strict", `["zone"]`))
	for i := range view.MaxSites {
		u.NodeLabels().Apply(wiretest.Node(fmt.Sprint("node-", i), fmt.Sprint(i)))
	}
	u.NodeLabels().Apply(wiretest.Node("node-more", "one more"))
	for i := range view.MaxSites {
		site := fmt.Sprint(i)
		u.histories[site], u.releases[site] = use(t, u.Node, site)
	}
	return u
}

func (u *siteViews) expectReadable(site string, want error) {
	u.Helper()
	if _, err := u.histories[site].Readable(served.Services); !errors.Is(err, want) {
		u.Errorf("site %s: %v", site, err)
	}
}

func (u *siteViews) expectLen(when string, want int) {
	u.Helper()
	if n := u.Sites.Len(); n != want {
		u.Errorf("%s: %d Views, want %d", when, n, want)
	}
}

// TestSiteViewsAreBounded in number: the one that nobody has used for the longest time makes room.
func TestSiteViewsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newSiteViews(t)
		for _, site := range []string{"one more", "nobodys"} {
			if h, _, err := u.Sites.History(site); !errors.Is(err, view.ErrTooManySites) || h != nil {
				t.Errorf("got %v %v", h, err)
			}
		}
		if again, _ := use(t, u.Node, "0"); again != u.histories["0"] {
			t.Fatalf("got %v", again)
		}
		before := u.histories["2"].Revision()
		u.releases["2"]()
		time.Sleep(time.Second)
		u.releases["1"]()
		_, releaseMore := use(t, u.Node, "one more")
		u.expectLen("with one more", view.MaxSites)
		u.expectReadable("2", served.ErrNotReady)
		if got, release := use(t, u.Node, "1"); got != u.histories["1"] {
			t.Error("it is not the one that was not used for the longest time")
		} else {
			release()
		}
		// Nobody of the view that went is to resume in the one that comes.
		releaseMore()
		if two, _ := use(t, u.Node, "2"); two.Revision() <= before || two == u.histories["2"] {
			t.Fatalf("it begins at %d, the one before was at %d", two.Revision(), before)
		}
	})
}

// TestIdleSiteViewsAreDropped, but not those that are in use, or that were used just before.
func TestIdleSiteViewsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newSiteViews(t)
		again, release := use(t, u.Node, "0")
		for _, release := range u.releases {
			release()
		}
		time.Sleep(view.SiteIdle - time.Second)
		u.expectLen("before the time", view.MaxSites)
		_, releaseFive := use(t, u.Node, "5")
		releaseFive()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		u.expectLen("with the one in use, and the one that was asked for", 2)
		if u.histories["0"] != again {
			t.Errorf("got %v", again)
		}
		for site, want := range map[string]error{"0": nil, "5": nil, "6": served.ErrNotReady} {
			u.expectReadable(site, want)
		}
		release()
		time.Sleep(view.SiteIdle + time.Second)
		synctest.Wait()
		u.expectLen("in the end", 0)
	})
}

// TestSiteViewsAtOnce: requests for the same site and for others at one time, while its nodes come and go.
func TestSiteViewsAtOnce(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.Services().Apply(wiretest.Service("strict", `["zone"]`))
	s.EndpointSlices().Apply(wiretest.Slice("strict-1", "strict", "node-a2", "node-b1", "node-c1"))
	done := make(chan struct{})
	var askers sync.WaitGroup
	for i := range 8 {
		askers.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for {
				select {
				case <-done:
					return
				default:
				}
				h, release, err := s.Sites.History([]string{"a", "b", "c", ""}[random.IntN(4)])
				if err != nil {
					t.Error(err)
					return
				}
				// A View may end while it is asked for; then its client asks again.
				_, _, err = h.List(served.EndpointSlices, "", 0)
				if err != nil && !errors.Is(err, served.ErrNotReady) {
					t.Error(err)
				}
				release()
			}
		})
	}
	for i := range 300 {
		s.NodeLabels().Apply(wiretest.Node("node-c1", []string{"c", "b"}[i%2]))
	}
	close(done)
	askers.Wait()
	s.NodeLabels().Apply(wiretest.Node("node-c1", "c"))
	for site, want := range map[string]string{"a": "node-a2", "b": "node-b1", "c": "node-c1", "": ""} {
		if got := nodesShown(t, siteHistory(t, s, site), "strict-1"); got != want {
			t.Errorf("site %q: got %q, want %q", site, got, want)
		}
	}
}

// siteWorld is a store to which anything happens, and Views of sites: those that were there early, and those that
// clients have.
type siteWorld struct {
	*testing.T
	*storagetest.Node

	what         string
	random       *rand.Rand
	early, asked map[string]*history.History
}

func (w *siteWorld) pick(from ...string) string { return pick(w.random, from...) }

// newView makes the View of a site, beside those that Sites makes.
func (w *siteWorld) newView(site string) *history.History {
	v := view.New(view.Options{
		Facts: w.Facts, Viewer: view.Site(site), KeepKubernetesEndpoint: true,
		History: history.Options{Revisions: history.NewRevisions(1000)},
	})
	w.Cleanup(v.Close)
	return v.History()
}

var nodesOfOthers = []string{"node-a2", "node-b1", "node-b2"}

// step changes something.
func (w *siteWorld) step() {
	switch w.random.IntN(7) {
	case 0:
		w.NodeLabels().Apply(wiretest.Node(w.pick(nodesOfOthers...), w.pick("a", "b", "c")))
	case 1:
		w.NodeLabels().Remove("", w.pick(nodesOfOthers...))
	case 2:
		w.Services().Apply(wiretest.Service(w.pick("s", "t"),
			w.pick("", `["zone"]`, `["rack","zone"]`, `["zone","*"]`, `["zone","*"]`, `bad`)))
	case 3:
		w.Services().Remove("ns", w.pick("s", "t"))
	case 4:
		service := w.pick("s", "t")
		name := service + w.pick("-1", "-2")
		w.EndpointSlices().Apply(wiretest.Slice(name, service, w.pick(nodesOfOthers...), w.pick(nodesOfOthers...)))
	case 5:
		w.SetDoubted(facts.Dead, map[string]struct{}{w.pick(nodesOfOthers...): {}})
	case 6: // a relist, held back with what comes after it
		w.Hold()
		w.NodeLabels().Replace([]*wire.Object{wiretest.Node(w.pick(nodesOfOthers...), w.pick("a", "b"))})
		w.NodeLabels().Apply(wiretest.Node(w.pick(nodesOfOthers...), w.pick("a", "b", "c")))
		w.Release()
	}
}

// expectConverged: all Views of a site show the same, and so does a node that carries that value of every key, if there
// is such a node.
func (w *siteWorld) expectConverged(site string) {
	w.Helper()
	fresh := w.newView(site)
	for _, r := range servedHere {
		want := shownTable(w.T, fresh, r)
		if got := shownTable(w.T, w.early[site], r); !slices.Equal(got, want) {
			w.Fatalf("%s site %s: %s:\ngot  %q\nwant %q", w.what, site, r.Resource, got, want)
		}
		if got := shownTable(w.T, w.asked[site], r); !slices.Equal(got, want) {
			w.Fatalf("%s site %s: %s: what was asked for has\n%q, want\n%q", w.what, site, r.Resource, got, want)
		}
	}
	there := false
	w.Read(func(in facts.Reader) { there = in.Inhabited(site) })
	if !there {
		return
	}
	as := nodeThere(w.T, w.Node, append([]string{"node-a1"}, nodesOfOthers...),
		map[string]string{"zone": site, "rack": site})
	if got, want := shownTable(w.T, fresh, served.EndpointSlices), shownTable(w.T, as.History,
		served.EndpointSlices); !slices.Equal(got, want) {
		w.Fatalf("%s site %s: a node of the site sees\n%q, the view is\n%q", w.what, site, want, got)
	}
}

// TestSiteViewConverges: whenever it was made and whatever the order, it shows what one made last shows, and what
// a node of that site sees.
func TestSiteViewConverges(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 3))
	for round := range 100 {
		w := &siteWorld{T: t, Node: newStore(), what: fmt.Sprintf("seed %d round %d", seed, round), random: random}
		w.early = map[string]*history.History{"a": w.newView("a"), "b": w.newView("b")}
		w.asked = map[string]*history.History{"a": siteHistory(t, w.Node, "a"), "b": siteHistory(t, w.Node, "b")}
		if random.IntN(2) == 0 {
			for range 10 {
				w.step()
			}
		}
		w.NodeLabels().Replace([]*wire.Object{wiretest.Node("node-a2", "a"), wiretest.Node("node-b1", "b")})
		w.Services().Replace(nil)
		w.EndpointSlices().Replace(nil)
		w.OwnNode().Replace(nil)
		for range 40 {
			w.step()
			if random.IntN(10) == 0 {
				// As a client that was told to list again, or comes now.
				site := w.pick("a", "b")
				w.asked[site] = siteHistory(t, w.Node, site)
			}
		}
		for site := range w.early {
			w.expectConverged(site)
		}
	}
}

// nodeThere is the Node of another node of the same cluster, with these labels.
func nodeThere(t *testing.T, s *storagetest.Node, others []string, labels topology.Labels) *storagetest.Node {
	t.Helper()
	var nodes, services, endpointSlices []*wire.Object
	s.Read(func(in facts.Reader) {
		for _, name := range others {
			if n := in.Node(name); n != nil {
				nodes = append(nodes, wiretest.NodeWith(name, n.Labels))
			}
		}
		in.Services(func(svc *facts.Service) { services = append(services, svc.Upstream) })
		in.Objects(served.EndpointSlices, func(o *facts.EndpointSet) {
			endpointSlices = append(endpointSlices, o.Upstream)
		})
	})
	there := storagetest.New(storagetest.Options{NodeName: "node-there", KeepKubernetesEndpoint: true})
	there.NodeLabels().Replace(append(nodes, wiretest.NodeWith("node-there", labels)))
	there.Services().Replace(services)
	there.EndpointSlices().Replace(endpointSlices)
	there.SetDoubted(facts.Dead, s.Doubted(facts.Dead))
	return there
}
