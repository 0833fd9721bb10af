package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// TestIngressControllerOfAnotherSite: client-go informers, as ingress controllers have them, on a node of site a
// see what a named site sees, in both protocols, and follow a node that moves.
func TestIngressControllerOfAnotherSite(t *testing.T) {
	for _, protocol := range []cluster.Protocol{cluster.WatchList, cluster.ListThenWatch} {
		t.Run(string(protocol), func(t *testing.T) {
			featuretesting.SetFeatureDuringTest(t, features.WatchListClient, protocol == cluster.WatchList)
			f := newFixture(t)
			f.daemonSet("echo", siteLabel)
			node := f.Node("a1")
			factories := map[string]informers.SharedInformerFactory{}
			for _, site := range []string{siteA, siteB, "site-c"} {
				config := node.WrapperConfig(cluster.RoleKubeProxy)
				config.Host += "/superedge-ingress/" + site
				client, err := kubernetes.NewForConfig(config)
				f.Must(err)
				factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
					informers.WithNamespace(f.namespace))
				factory.Discovery().V1().EndpointSlices().Informer()
				factory.Start(f.ctx.Done())
				f.Cleanup(factory.Shutdown)
				factories[site] = factory
			}
			expect := func(what string, want map[string]string) {
				t.Helper()
				f.Eventually(what, func() error {
					for site, factory := range factories {
						lister := factory.Discovery().V1().EndpointSlices().Lister()
						listed, err := lister.EndpointSlices(f.namespace).List(labels.Everything())
						if err != nil || len(listed) == 0 {
							return fmt.Errorf("site %q: no slices: %w", site, err)
						}
						if got := nodesOf(listed, isAny); got != want[site] {
							return fmt.Errorf("site %q sees endpoints on %q, want %q", site, got, want[site])
						}
					}
					return nil
				})
			}
			expect("every site sees its own", map[string]string{siteA: "a1 a2", siteB: "b1 b2"})
			f.relabel("b2", "site-c")
			expect("a node moves into a site that nobody was of",
				map[string]string{siteA: "a1 a2", siteB: "b1", "site-c": "b2"})
		})
	}
}

// TestExplainCommand asks the running wrapper with the shipped binary, on the node.
func TestExplainCommand(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", siteLabel)
	f.ExpectReach("before", service, siteLocal)
	node := f.Node("a1")
	binary := suite.Binary(t, "application-grid-wrapper")
	run := func(args ...string) (string, error) {
		return node.Run(f.ctx, binary, append([]string{"explain", f.namespace + "/echo"}, args...)...)
	}
	table, err := run()
	f.Must(err)
	t.Logf("\n%s", table)
	for _, want := range []string{"Seen from node:  a1", siteLabel + "=" + siteA, "2 kept, 2 hidden",
		"node b1 has " + siteLabel + "=" + siteB + ", not " + siteA} {
		if !strings.Contains(table, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	output, err := run("--as-node=b1", "--output=json")
	f.Must(err)
	var explanation struct {
		Node      string
		Kept      int
		Endpoints []struct {
			Node string
			Kept bool
		}
	}
	f.Must(json.Unmarshal([]byte(output), &explanation))
	for _, e := range explanation.Endpoints {
		if e.Kept != strings.HasPrefix(e.Node, "b") {
			t.Errorf("as b1: %+v", e)
		}
	}
	if explanation.Node != "b1" || explanation.Kept != 2 {
		t.Errorf("as b1: %+v", explanation)
	}
	if output, err := run("--as-node=nowhere"); err == nil || !strings.Contains(output, `nodes "nowhere" not found`) {
		t.Errorf("got %q, %v", output, err)
	}
}
