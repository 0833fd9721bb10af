package skew

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	siteLabel = "zone1"
	older     = "older"
	today     = "today"

	wrapper    = "application-grid-wrapper"
	hub        = "application-grid-hub"
	controller = "application-grid-controller"
	lite       = "lite-apiserver"
)

// releases are the directories of the programs of both.
type releases struct {
	// links has a link to each program, which leads to the one that a component starts next.
	links string
	paths map[string]map[string]string
}

func newReleases(t *testing.T) *releases {
	t.Helper()
	directory := os.Getenv("OLDER_BIN")
	if directory == "" {
		t.Skip("OLDER_BIN is not set: make test-skew builds the older programs")
	}
	r := &releases{links: t.TempDir(), paths: map[string]map[string]string{older: {}, today: {}}}
	for _, name := range []string{wrapper, hub, controller, lite} {
		r.paths[today][name] = suite.Binary(t, name)
		r.paths[older][name] = filepath.Join(directory, name)
		r.use(t, name, older)
	}
	return r
}

// path is what a component of the cluster is started from.
func (r *releases) path(name string) string { return filepath.Join(r.links, name) }

// use has the next start of a program be that of a release.
func (r *releases) use(t *testing.T, name, release string) {
	t.Helper()
	link := r.path(name)
	suite.Must(t, errors.Join(os.RemoveAll(link), os.Symlink(r.paths[release][name], link)))
}

// upgrade is a cluster whose programs change one after the other, while all nodes ask a Service.
type upgrade struct {
	suite.Test
	*releases
	client   workload.Namespace
	sites    map[string][]string
	services int
}

// TestNodes takes hub and wrappers from the older programs to today's and back, in the order of docs/upgrade.md. On the
// way to today's each wrapper restarts while the cloud is away, on the snapshot of the older release. No connection
// fails.
func TestNodes(t *testing.T) {
	r := newReleases(t)
	u := &upgrade{releases: r, sites: map[string][]string{
		"east1": {"east1", "east2"}, "east2": {"east1", "east2"}, "west1": {"west1"}}}
	node := func(name, site string, args ...string) cluster.NodeSpec {
		return cluster.NodeSpec{Name: name, Labels: map[string]string{siteLabel: site}, WrapperArgs: append(args,
			"--state-write-delay=1s")}
	}
	keys, err := cluster.WriteSiteKey(t.TempDir())
	suite.Must(t, err)
	exchange := []string{"--site-exchange=on", "--site-exchange-key-file=" + keys}
	east1, east2 := node("east1", "east", exchange...), node("east2", "east", exchange...)
	east1.Runtime, east2.Runtime = true, true
	c, err := cluster.Start(t.Context(), cluster.Options{
		Components: suite.Binary(t, "components"), Wrapper: r.path(wrapper), Hub: r.path(hub), Progress: os.Stdout,
		Nodes: []cluster.NodeSpec{east1, east2, node("west1", "west", "--hub")},
	})
	suite.Must(t, err)
	t.Cleanup(func() { suite.Must(t, c.Stop()) })
	u.Test = suite.NewTest(t, c, 2*time.Minute, 100*time.Millisecond)
	u.client = workload.In(c.Client(), metav1.NamespaceDefault)
	u.Must(u.client.CreateDaemonSet(t.Context(), "echo"))
	u.works("all are older")
	u.exchanges("both are older", 1, "east1", "east2")
	u.ask()

	for _, way := range [][2]string{{older, today}, {today, older}} {
		before, after := way[0], way[1]
		u.use(t, hub, after)
		u.Must(c.Hubs[0].Restart(t.Context()))
		u.Must(c.AwaitHub(t.Context()))
		u.works(fmt.Sprintf("wrappers %s, the hub %s", before, after))
		for _, name := range []string{"east1", "east2", "west1"} {
			u.use(t, wrapper, after)
			if after == today {
				u.restartAway(name)
			} else { // the older one finds no snapshot
				u.Node(name).Wrapper.Kill()
				u.Must(u.Node(name).Wrapper.Launch())
				u.Must(u.Node(name).Wrapper.WaitReady(t.Context()))
			}
			step := fmt.Sprintf("from %s on the wrappers are %s", name, after)
			if name == "east1" { // today's exchange has another version than that of the older one
				u.exchanges(step, 0, map[string]string{today: "east1", older: "east2"}[after])
				u.worksMixed(step)
			} else {
				u.exchanges(step, 1, "east1", "east2")
				u.works(step)
			}
		}
	}
}

// works proves that a change in the cloud reaches every node: each reaches a new Service, on all nodes of its site.
func (u *upgrade) works(what string) {
	u.Helper()
	u.reaches(what, slices.Equal)
}

// worksMixed proves it while neighbours of two versions suspect each other: each node reaches some nodes of its site,
// and no other.
func (u *upgrade) worksMixed(what string) {
	u.Helper()
	u.reaches(what, func(got, site []string) bool {
		return len(got) > 0 && !slices.ContainsFunc(got, func(node string) bool { return !slices.Contains(site, node) })
	})
}

func (u *upgrade) reaches(what string, right func(got, site []string) bool) {
	u.Helper()
	u.services++
	service, err := u.client.CreateService(u.Context(), fmt.Sprintf("echo%d", u.services),
		workload.ServiceOptions{Workload: "echo", TopologyKeys: []string{siteLabel}})
	u.Must(err)
	for name, site := range u.sites {
		u.Eventually(fmt.Sprintf("%s: %s reaches its site", what, name), func() error {
			if got := workload.Reach(u.Context(), u.Node(name), service, 20).Nodes(); !right(got, site) {
				return fmt.Errorf("it reaches %v", got)
			}
			return nil
		})
	}
}

// exchanges waits until the wrappers of some nodes have so many neighbours in their exchange.
func (u *upgrade) exchanges(what string, taking int, nodes ...string) {
	u.Helper()
	u.Log(what)
	for _, name := range nodes {
		u.Says(u.Node(name), "/readyz", fmt.Sprintf("site-exchange: ok, %d of 1 neighbours take part", taking))
	}
}

// ask has every node ask the first Service from now on. Each connection must be answered from its site.
func (u *upgrade) ask() {
	u.Helper()
	service, err := u.Cluster.Client().CoreV1().Services(metav1.NamespaceDefault).Get(u.Context(), "echo1", metav1.GetOptions{})
	u.Must(err)
	traffic := workload.StartTraffic(context.WithoutCancel(u.Context()), workload.URL(service), 20*time.Millisecond)
	for name, site := range u.sites {
		traffic.From(u.Node(name), site)
	}
	u.Cleanup(func() {
		tried, failed := traffic.End()
		u.Logf("%d of %d connections failed", len(failed), tried)
		if tried == 0 || len(failed) > 0 {
			u.Errorf("%d of %d connections failed:\n%s", len(failed), tried, strings.Join(failed[:min(len(failed), 20)], "\n"))
		}
	})
}

// restartAway restarts the wrapper of a node while its cloud is away: it serves what the release before has written.
func (u *upgrade) restartAway(name string) {
	u.Helper()
	node := u.Node(name)
	u.Eventually("the wrapper of "+name+" has written a snapshot", func() error {
		_, err := os.Stat(filepath.Join(node.StateDir, "snapshot-"+name))
		return err
	})
	u.Must(node.CutLink(u.Context()))
	node.Wrapper.Kill()
	u.Must(node.Wrapper.Launch())
	u.Eventually("the wrapper of "+name+" serves the snapshot of the other release", func() error {
		reply, err := node.Get(u.Context(), node.WrapperURL()+"/apis/discovery.k8s.io/v1/endpointslices?limit=500")
		if err != nil {
			return err
		}
		if reply.Status != http.StatusOK || !strings.Contains(reply.Body, "echo1") {
			return fmt.Errorf("status %d: %.300s", reply.Status, reply.Body)
		}
		return nil
	})
	u.Must(node.RestoreLink(u.Context()))
	u.Must(node.Wrapper.WaitReady(u.Context()))
}
