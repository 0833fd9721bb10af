package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// hubNode is the node whose wrapper goes behind the hub.
	hubNode = "node0"
	// sitesServices and siteEndpoints are Services of another site than that node's, and the endpoints of each.
	sitesServices, siteEndpoints = 100, 100
	siteNamespace                = "sites"
	// creators is how many of them are made at once.
	creators = 8
)

// showHub shows what a wrapper receives from the cloud before and after there is a hub.
func (d *demo) showHub(ctx context.Context) error {
	fmt.Printf("\n8. A hub: %d more Services, %d endpoints each, all of them in %s, which is not %s's site\n\n",
		sitesServices, siteEndpoints, newSite, hubNode)
	if err := d.createSites(ctx); err != nil {
		return err
	}
	node, err := d.cluster.Node(hubNode)
	if err != nil {
		return err
	}
	directly, err := d.received(ctx, node, 1)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := d.cluster.StartHub(ctx); err != nil {
		return err
	}
	fmt.Printf("\n   The hub is there after %s. %s's wrapper is restarted, with --hub.\n\n",
		time.Since(begin).Round(time.Millisecond), hubNode)
	node.Wrapper.SetArgs(append(node.Wrapper.Args(), "--hub"))
	through, err := d.received(ctx, node, 2)
	if err != nil {
		return err
	}
	fmt.Printf("   %-44s%16s%18s\n", fmt.Sprintf("what %s's wrapper receives", hubNode), "directly", "through the hub")
	fmt.Printf("   %-44s%16s%18s\n", "to become ready", kilobytes(directly.start), kilobytes(through.start))
	fmt.Printf("   %-44s%16s%18s\n\n", fmt.Sprintf("while the endpoints of %d Services change", sitesServices),
		kilobytes(directly.changes), kilobytes(through.changes))
	if through.start >= directly.start || through.changes >= directly.changes {
		return fmt.Errorf("%w: the hub saves nothing", errWrong)
	}
	return nil
}

func kilobytes(bytes int64) string { return fmt.Sprintf("%.1f kB", float64(bytes)/1e3) }

// createSites makes the Services and their endpoints.
func (d *demo) createSites(ctx context.Context) error {
	client := d.cluster.Client()
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: siteNamespace}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating a namespace: %w", err)
	}
	return concurrently(ctx, func(ctx context.Context, i int) error {
		name := siteName(i)
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Annotations: map[string]string{"topologyKeys": fmt.Sprintf("[%q]", siteLabel)}},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}
		if _, err := client.CoreV1().Services(siteNamespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating the Service %s: %w", name, err)
		}
		if _, err := client.DiscoveryV1().EndpointSlices(siteNamespace).Create(ctx, siteSlice(i, 0),
			metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating the slice of %s: %w", name, err)
		}
		return nil
	})
}

func siteName(i int) string { return "site-" + strconv.Itoa(i) }

// siteSlice has endpoints on the node of the new site. They listen on another port in every version.
func siteSlice(i int, version int32) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: siteName(i),
			Labels: map[string]string{discoveryv1.LabelServiceName: siteName(i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(8080 + version),
			Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for e := range siteEndpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.250.%d.%d", i, e+1)}, NodeName: ptr.To(newNode),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	return slice
}

// receipt is how many bytes a wrapper received.
type receipt struct{ start, changes int64 }

// received restarts a node's wrapper, without what it had kept, and changes the endpoints of the sites.
func (d *demo) received(ctx context.Context, node *cluster.Node, version int32) (receipt, error) {
	var r receipt
	if err := node.Wrapper.Stop(); err != nil {
		return r, err
	}
	if err := os.RemoveAll(node.StateDir); err != nil {
		return r, fmt.Errorf("forgetting the snapshot: %w", err)
	}
	if err := os.MkdirAll(node.StateDir, 0o700); err != nil {
		return r, fmt.Errorf("forgetting the snapshot: %w", err)
	}
	if err := node.Wrapper.Start(ctx); err != nil {
		return r, err
	}
	var err error
	if r.start, err = bytesRead(node.Wrapper.PID()); err != nil {
		return r, err
	}
	client := d.cluster.Client()
	err = concurrently(ctx, func(ctx context.Context, i int) error {
		_, err := client.DiscoveryV1().EndpointSlices(siteNamespace).Update(ctx, siteSlice(i, version),
			metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return r, fmt.Errorf("changing endpoints: %w", err)
	}
	// What is on its way arrives.
	ctx, cancel := context.WithTimeout(ctx, demoDeadline)
	defer cancel()
	for before, now := int64(-1), int64(0); before != now; {
		before = now
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
		if now, err = bytesRead(node.Wrapper.PID()); err != nil {
			return r, err
		}
		r.changes = now - r.start
	}
	return r, nil
}

// bytesRead is how many bytes a process has read, of files and of connections.
func bytesRead(pid int) (int64, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, fmt.Errorf("counting what the wrapper received: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, "rchar: "); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/io does not say what was read", pid)
}

// concurrently makes something of every site.
func concurrently(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range sitesServices {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}
