package compat

import (
	"context"
	"fmt"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// informerNode is an informer of EndpointSlices that is tried at a node's wrapper.
type informerNode struct {
	subject

	at      *proxyNode
	factory informers.SharedInformerFactory
}

// userAgent is the name by which the wrapper's log tells the informer from others.
func (n *informerNode) userAgent() string { return "informer-" + n.row.protocol + "-" + n.row.mode }

// startInformers starts an informer for every protocol and encoding, at a node of either site.
func (f *fixture) startInformers() {
	f.Helper()
	for _, protocol := range []cluster.Protocol{cluster.WatchList, cluster.ListThenWatch} {
		// A reflector reads the gate when it begins.
		featuretesting.SetFeatureDuringTest(f.T, features.WatchListClient, protocol == cluster.WatchList)
		for _, encoding := range []struct{ name, contentType, site string }{
			{"JSON", "application/json", siteA}, {"protobuf", "application/vnd.kubernetes.protobuf", siteB},
		} {
			n := &informerNode{
				subject: subject{row: row{component: "client-go informer", version: under.clientGo,
					protocol: string(protocol), mode: encoding.name}},
				at: f.oneOf(encoding.site),
			}
			config := n.at.node.WrapperConfig(cluster.RoleKubeProxy)
			config.ContentType, config.AcceptContentTypes = encoding.contentType, encoding.contentType
			config.UserAgent = n.userAgent()
			client, err := kubernetes.NewForConfig(config)
			f.Must(err)
			n.factory = informers.NewSharedInformerFactory(client, 0)
			n.factory.Discovery().V1().EndpointSlices().Informer()
			n.factory.Start(f.ctx.Done())
			f.Cleanup(n.factory.Shutdown) // the test's context ends before
			// Before the next protocol is set, this one has begun.
			f.try(&n.subject, "first sync", func() error {
				ctx, cancel := context.WithTimeout(f.ctx, deadline)
				defer cancel()
				for kind, synced := range n.factory.WaitForCacheSync(ctx.Done()) {
					if !synced {
						return fmt.Errorf("%s is not synced", kind)
					}
				}
				return nil
			})
			f.informers = append(f.informers, n)
		}
	}
}

// expectViews waits until every informer has the endpoints that its node should see.
func (f *fixture) expectViews(step string) {
	f.Helper()
	for _, n := range f.informers {
		f.try(&n.subject, step, func() error {
			for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
				got, err := n.ready()
				if err != nil {
					return err
				}
				want := f.expected(n.at)
				if got == want {
					return nil
				}
				if time.Since(begin) > deadline {
					return fmt.Errorf("want endpoints on %s, got %s", want, got)
				}
			}
		})
	}
}

// ready are the nodes of the Service's ready endpoints in the informer's cache.
func (n *informerNode) ready() (string, error) {
	slices, err := n.factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(namespace).
		List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: echo}))
	if err != nil {
		return "", err
	}
	seen := workload.Reached{}
	for _, slice := range slices {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
				seen[*endpoint.NodeName]++
			}
		}
	}
	return strings.Join(seen.Nodes(), " "), nil
}
