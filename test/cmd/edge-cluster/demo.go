package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

const (
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

// errWrong ends a demo in which a connection left its site, or a change did not arrive.
var errWrong = errors.New("what was seen is not what should be")

func newDemoCommand() *cobra.Command {
	var o options
	var once bool
	command := &cobra.Command{
		Use:   "demo",
		Short: "Show grids: a workload per site, and a Service that reaches, from every node, its own site only",
		Long: `demo starts a cluster with node0 in site east and node1 and node2 in site west, applies a
DeploymentGrid, a StatefulSetGrid and their ServiceGrids, and shows what application-grid-controller makes of them
and whom the Service's cluster IP reaches from every node. Then it moves node1 into east by changing its
label, and shows it again, with the time until the data plane had followed; and it adds a node of a new site,
whose workloads appear; and it gives the DeploymentGrid a change that halts at its canary. At last it starts
application-grid-hub, and shows what a node's link carries with it and without. Afterwards the cluster stays up
until Ctrl-C.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return o.demo(command.Context(), once) },
	}
	o.addFlags(command.Flags())
	command.Flags().BoolVar(&once, "once", false,
		"end after the walk-through; the exit code is 0 only if what was seen is right")
	return command
}

// demo is one walk-through on one cluster.
type demo struct {
	cluster *cluster.Cluster
	// look is how it is found out whom a node's traffic reaches.
	look func(ctx context.Context, from *cluster.Node) workload.Reached
	// sites is the site of every node.
	sites map[string]string
	// subject begins the sentence about what has followed.
	subject string
}

func (o *options) demo(ctx context.Context, once bool) (err error) {
	settings, err := o.clusterOptions()
	if err != nil {
		return err
	}
	if err := o.prepareMachine(ctx, &settings); err != nil {
		return err
	}
	if !settings.APIViewOnly {
		settings.DNSDaemon = o.dnsDaemon
	}
	fmt.Printf("1. A cluster: node0 in site east, node1 and node2 in west (label %s)\n", siteLabel)
	c, err := cluster.Start(ctx, settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(c)) }()

	err = o.walkThrough(ctx, c, settings.Nodes)
	if once || ctx.Err() != nil {
		return err
	}
	if err != nil {
		fmt.Printf("\n%v\n", err)
	}
	o.printAccess(c)
	return waitForEnd(ctx, c)
}

func (o *options) walkThrough(ctx context.Context, c *cluster.Cluster, specs []cluster.NodeSpec) error {
	fmt.Println("\n2. application-grid-controller, and four grids: kubectl apply -f grids.yaml")
	fmt.Println()
	if err := o.startController(ctx, c); err != nil {
		return err
	}
	if err := o.applyGrids(ctx, c); err != nil {
		return err
	}
	if err := gridsReady(ctx, c, 2); err != nil {
		return err
	}
	if err := o.show(ctx, c); err != nil {
		return err
	}
	service, err := c.Client().CoreV1().Services(demoNamespace).Get(ctx, demoName+"-svc", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the ServiceGrid's Service: %w", err)
	}
	d := demo{cluster: c, sites: map[string]string{}, subject: "every node's data plane"}
	for _, spec := range specs {
		d.sites[spec.Name] = spec.Labels[siteLabel]
	}
	what := fmt.Sprintf("curl %s, %d times from each node's namespace", workload.URL(service), demoTries)
	d.look = func(ctx context.Context, from *cluster.Node) workload.Reached {
		return workload.Reach(ctx, from, service, demoTries)
	}
	if c.Namespace() == "" {
		d.subject = "every node's wrapper"
		what = "endpoints in the EndpointSlices that each node's wrapper serves"
		d.look = func(ctx context.Context, from *cluster.Node) workload.Reached {
			return workload.Served(ctx, from, service)
		}
	}

	fmt.Printf("\n3. Whom the Service %s reaches: %s\n\n", service.Name, what)
	if _, err := d.follow(ctx); err != nil {
		return err
	}

	if err := d.moveNode(ctx); err != nil {
		return err
	}
	if err := o.addSite(ctx, &d); err != nil {
		return err
	}
	step := 6
	if c.Namespace() != "" {
		if err := o.names(ctx, &d); err != nil {
			return err
		}
		step++
	}
	if err := o.canary(ctx, c, step); err != nil {
		return err
	}
	fmt.Printf("\n%d. A hub: %d more Services, %d endpoints each, all of them in %s, which is not %s's site\n\n",
		step+1, sitesServices, siteEndpoints, newSite, hubNode)
	if err := d.showHub(ctx); err != nil {
		return err
	}
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
	fmt.Printf("\n   %s had followed %s after the label changed.\n", d.subject, took.Round(time.Millisecond))
	return err
}

// addSite shows that a new site gets workloads of its own.
func (o *options) addSite(ctx context.Context, d *demo) error {
	fmt.Printf("\n5. A new site: %s joins, in site %s\n\n", newNode, newSite)
	if _, err := d.cluster.AddNode(ctx, cluster.NodeSpec{Name: newNode,
		Labels: map[string]string{siteLabel: newSite}}); err != nil {
		return err
	}
	d.sites[newNode] = newSite
	if err := gridsReady(ctx, d.cluster, 3); err != nil {
		return err
	}
	if err := o.show(ctx, d.cluster); err != nil {
		return err
	}
	fmt.Println()
	_, err := d.follow(ctx)
	return err
}

// show lists the grids and what was made of them.
func (o *options) show(ctx context.Context, c *cluster.Cluster) error {
	for _, resources := range []string{"dg,ssg,sg", "deployments,statefulsets"} {
		fmt.Printf("\n   $ kubectl get %s\n", resources)
		if err := o.kubectl(ctx, c, "get", resources); err != nil {
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
	return sight{d.look(ctx, from), d.expected(ctx, from)}
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
