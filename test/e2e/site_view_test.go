package e2e

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
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
