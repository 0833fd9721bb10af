package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// siteLabel is the label whose value is a node's site.
	siteLabel     = "zone1"
	demoNamespace = "default"
	demoName      = "echo"
	demoTries     = 20
	// demoDeadline limits how long the data plane may take to show what it should.
	demoDeadline = 60 * time.Second

	// lookInterval lets the components have the processor while the demo waits for them.
	lookInterval = 10 * time.Millisecond

	movedNode = "node1"
	movedTo   = "east"

	newNode = "node3"
	newSite = "north"
)

// demo is one walk-through on one cluster.
type demo struct {
	cluster *cluster.Cluster
	service *corev1.Service
	// sites is the site of every node.
	sites map[string]string
}

func run(ctx context.Context, once bool) (err error) {
	d := demo{sites: map[string]string{"node0": "east", "node1": "west", "node2": "west"}}
	settings := cluster.Options{Components: program("components"), Wrapper: program("application-grid-wrapper"),
		Hub: program("application-grid-hub"), HubLater: true, DNSDaemon: program("statefulset-grid-daemon"),
		Progress: indented{os.Stdout}}
	for _, name := range slices.Sorted(maps.Keys(d.sites)) {
		settings.Nodes = append(settings.Nodes,
			cluster.NodeSpec{Name: name, Labels: map[string]string{siteLabel: d.sites[name]}})
	}
	fmt.Printf("1. A cluster: node0 in site east, node1 and node2 in west (label %s)\n", siteLabel)
	if d.cluster, err = cluster.Start(ctx, settings); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(d.cluster)) }()
	err = d.walkThrough(ctx)
	if once || ctx.Err() != nil {
		return err
	}
	if err != nil {
		fmt.Printf("\n%v\n", err)
	}
	printAccess(d.cluster)
	return waitForEnd(ctx, d.cluster)
}

func (d *demo) walkThrough(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.startGrids, d.firstLook, d.moveNode, d.addSite, d.names, d.canary, d.showHub,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	_, err := d.follow(ctx)
	return err
}

// startGrids starts application-grid-controller, which installs the grids' CRDs, and applies the grids.
func (d *demo) startGrids(ctx context.Context) error {
	fmt.Println("\n2. application-grid-controller, and four grids: kubectl apply -f grids.yaml")
	fmt.Println()
	controller, err := d.cluster.NewController(ctx, "demo", program("application-grid-controller"))
	if err != nil {
		return err
	}
	if err := controller.Start(ctx); err != nil {
		return err
	}
	if err := d.applyGrids(ctx); err != nil {
		return err
	}
	if err := d.gridsReady(ctx, 2); err != nil {
		return err
	}
	return d.show(ctx)
}

func (d *demo) firstLook(ctx context.Context) (err error) {
	d.service, err = d.cluster.Client().CoreV1().Services(demoNamespace).Get(ctx, demoName+"-svc", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the ServiceGrid's Service: %w", err)
	}
	fmt.Printf("\n3. Whom the Service %s reaches: curl %s, %d times from each node's namespace\n\n", d.service.Name,
		workload.URL(d.service), demoTries)
	_, err = d.follow(ctx)
	return err
}

// moveNode shows that the data plane follows a node to another site.
func (d *demo) moveNode(ctx context.Context) error {
	fmt.Printf("\n4. %s moves to site %s: kubectl label node %s %s=%s --overwrite\n\n", movedNode, movedTo, movedNode,
		siteLabel, movedTo)
	if err := d.cluster.RelabelNode(ctx, movedNode, siteLabel, movedTo); err != nil {
		return err
	}
	d.sites[movedNode] = movedTo
	took, err := d.follow(ctx)
	fmt.Printf("\n   every node's data plane had followed %s after the label changed.\n", took.Round(time.Millisecond))
	return err
}

// addSite shows that a new site gets workloads of its own.
func (d *demo) addSite(ctx context.Context) error {
	fmt.Printf("\n5. A new site: %s joins, in site %s\n\n", newNode, newSite)
	if _, err := d.cluster.AddNode(ctx, cluster.NodeSpec{Name: newNode,
		Labels: map[string]string{siteLabel: newSite}}); err != nil {
		return err
	}
	d.sites[newNode] = newSite
	if err := d.gridsReady(ctx, 3); err != nil {
		return err
	}
	if err := d.show(ctx); err != nil {
		return err
	}
	fmt.Println()
	_, err := d.follow(ctx)
	return err
}

// show lists the grids and what was made of them.
func (d *demo) show(ctx context.Context) error {
	for _, resources := range []string{"dg,ssg,sg", "deployments,statefulsets"} {
		fmt.Printf("\n   $ kubectl get %s\n", resources)
		if err := d.kubectl(ctx, "get", resources); err != nil {
			return err
		}
	}
	return nil
}

// sight is whom a node's traffic reaches, and whom it should.
type sight struct {
	reached  workload.Reached
	expected []string
}

func (s sight) right() bool { return slices.Equal(s.reached.Nodes(), s.expected) }

func (d *demo) see(ctx context.Context, from *cluster.Node) sight {
	return sight{workload.Reach(ctx, from, d.service, demoTries), d.expected(ctx, from)}
}

// follow waits until every node reaches exactly its own site, prints what is reached and returns the time it
// took. After the deadline it prints what there is instead; the error then wraps errWrong.
func (d *demo) follow(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	waiting, cancel := context.WithTimeout(ctx, demoDeadline)
	defer cancel()
	var mu sync.Mutex
	var latest time.Duration
	var group sync.WaitGroup
	nodes := d.cluster.Nodes()
	seen := make([]sight, len(nodes))
	for i, node := range nodes {
		group.Go(func() {
			for seen[i] = d.see(waiting, node); !seen[i].right(); seen[i] = d.see(waiting, node) {
				select {
				case <-waiting.Done():
					seen[i] = d.see(ctx, node) // the deadline has cut off the last one
					return
				case <-time.After(lookInterval):
				}
			}
			mu.Lock()
			defer mu.Unlock()
			latest = max(latest, time.Since(begin))
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return 0, errors.New("interrupted")
	}
	return latest, d.print(nodes, seen)
}

// expected are the nodes of the node's own site that run an echo pod, in order; workload.Refused if there are
// none. It is nil if that cannot be found out.
func (d *demo) expected(ctx context.Context, from *cluster.Node) []string {
	pods, err := d.cluster.Client().CoreV1().Pods(demoNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app=" + demoName})
	if err != nil {
		return nil
	}
	nodes := map[string]bool{}
	for _, pod := range pods.Items {
		node := pod.Spec.NodeName
		if pod.DeletionTimestamp == nil && node != "" && d.sites[node] == d.sites[from.Spec.Name] {
			nodes[node] = true
		}
	}
	if len(nodes) == 0 {
		return []string{workload.Refused}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// print prints a table of what was seen; the error tells where it is not as expected.
func (d *demo) print(nodes []*cluster.Node, seen []sight) error {
	fmt.Printf("   %-22s", "from")
	for _, node := range nodes {
		fmt.Printf("%8s", node.Spec.Name)
	}
	fmt.Printf("%12s\n", "nobody")
	var wrong []string
	for i, from := range nodes {
		fmt.Printf("   %-22s", fmt.Sprintf("%s (%s)", from.Spec.Name, d.sites[from.Spec.Name]))
		for _, node := range nodes {
			fmt.Printf("%8s", seen[i].reached.Count(node.Spec.Name))
		}
		verdict := "ok"
		if !seen[i].right() {
			verdict = "WRONG"
			wrong = append(wrong, fmt.Sprintf("from %s it should be %s", from.Spec.Name,
				strings.Join(seen[i].expected, " and ")))
		}
		fmt.Printf("%12s   %s\n", seen[i].reached.Count(workload.Refused), verdict)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", errWrong, strings.Join(wrong, "; "))
	}
	return nil
}
