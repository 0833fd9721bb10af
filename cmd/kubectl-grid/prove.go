package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/prove"
)

// proveOptions are the flags of `kubectl grid prove`.
type proveOptions struct {
	probe        prove.Probe
	image        string
	exec         bool
	path         string
	port         string
	allNodes     bool
	podNamespace string
	timeout      time.Duration
	output       format
}

// askedAtOnce is how many nodes are asked from at the same time, which limits what a command asks of the cluster.
const askedAtOnce = 10

func newProveCommand(c *command) *cobra.Command {
	o := &proveOptions{}
	cmd := &cobra.Command{
		Use:   "prove SERVICE",
		Short: "Whom a Service reaches from every unit, tried out",
		Long: "Connects to the Service from a node of every unit, again and again, and prints which units were reached from\n" +
			"which. A short pod on the node does that, in the node's network; it opens connections of TCP, sends nothing, and\n" +
			"asks the kernel where each was sent. It is removed in the end. With --exec no pod is made: the wrappers' pods ask\n" +
			"by HTTP, and the answers have to name the pod, the node or the address that gave them.\n" +
			"SERVICE is the name of a Service, svc/NAME, or the name of a ServiceGrid, sg/NAME.\n\n" +
			"Exit codes: 0 no connection left its unit; 1 that could not be proved; 2 the command line is wrong; 3 a\n" +
			"connection left its unit.",
		Example: "  kubectl grid prove echo-svc\n" +
			"  kubectl grid prove sg/echo --requests 100 --all-nodes",
		ValidArgsFunction: c.completeServices,
		Args: usageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("give the name of one Service or ServiceGrid; got %d arguments", len(args))
			}
			_, _, err := serviceArgument(args[0])
			return errors.Join(err, o.check())
		}),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), c, args[0]) },
	}
	f := cmd.Flags()
	f.IntVar(&o.probe.Requests, "requests", 20, "How many connections from each node, one after the other")
	f.DurationVar(&o.probe.Timeout, "connect-timeout", time.Second, "How long one connection may take")
	f.StringVar(&o.port, "port", "", "Name or number of the Service's port. Empty: its first of TCP")
	f.BoolVar(&o.allNodes, "all-nodes", false, "Ask from every node of each unit, not from one of them")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "How long asking from one node may take, with starting a pod")
	f.StringVar(&o.image, "image", "", "Image of application-grid-wrapper for the pods. Empty: that of the wrapper on the node")
	f.StringVar(&o.podNamespace, "pod-namespace", metav1.NamespaceSystem, "Namespace of the pods: it has to allow the node's network and the capability NET_ADMIN")
	f.BoolVar(&o.exec, "exec", false, "Ask by HTTP in the wrappers' pods, and make none")
	f.StringVar(&o.path, "path", "/", "With --exec: the path of the URL")
	for _, name := range []string{"requests", "connect-timeout", "port", "timeout", "image", "path"} {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions); err != nil {
			panic(err) // the flag is bound above
		}
	}
	if err := cmd.RegisterFlagCompletionFunc("pod-namespace", c.completeFlag("namespace")); err != nil {
		panic(err) // the flag is bound above
	}
	bindOutput(cmd, &o.output, formatTable, formatJSON, formatYAML)
	return cmd
}

// check looks at the flags' values.
func (o *proveOptions) check() error {
	switch {
	case o.probe.Requests < 1 || o.probe.Requests > 10000:
		return fmt.Errorf("--requests=%d: give 1 to 10000", o.probe.Requests)
	case o.probe.Timeout <= 0 || o.timeout <= 0:
		return errors.New("--timeout and --connect-timeout have to be more than 0")
	case !strings.HasPrefix(o.path, "/"):
		return fmt.Errorf("--path=%s: it begins with /", o.path)
	}
	return nil
}

func (o *proveOptions) run(ctx context.Context, c *command, argument string) error {
	kind, name, err := serviceArgument(argument)
	if err != nil {
		return usageError{err}
	}
	cluster, namespace, err := c.connect()
	if err != nil {
		return err
	}
	service, err := cluster.service(ctx, namespace, kind, name)
	if err != nil {
		return err
	}
	slicesOf, nodes, err := cluster.surroundings(ctx, service)
	if err != nil {
		return err
	}
	which := prove.OneOfEach
	if o.allNodes {
		which = prove.AllOfEach
	}
	plan, err := prove.Prepare(service, slicesOf, nodes, o.port, which)
	if err != nil {
		return err
	}
	runner, err := o.runner(ctx, cluster)
	if err != nil {
		return err
	}
	if left := plan.NotAsked(nodes); len(left) > 0 {
		cluster.warn("%s in these units without a wrapper, and not asked from: %s. Their kube-proxies reach every unit; --all-nodes shows it.",
			map[bool]string{true: "a node is", false: "nodes are"}[len(left) == 1], nameNodes(left))
	}
	answers := plan.Ask(ctx, runner, prove.Limits{AtOnce: askedAtOnce, Timeout: o.timeout})
	if ctx.Err() != nil {
		return errors.New("interrupted; what was made is removed")
	}
	if service, err = cluster.service(ctx, namespace, "Service", service.Name); err != nil {
		return fmt.Errorf("asking for the Service again: %w", err)
	}
	if slicesOf, nodes, err = cluster.surroundings(ctx, service); err != nil {
		return fmt.Errorf("asking again: %w", err)
	}
	proof, err := plan.Conclude(answers, service, slicesOf, nodes)
	if err != nil {
		return err
	}
	if err := printProof(c.stdout, proof, o.probe.Requests, o.output); err != nil {
		return err
	}
	switch proof.Verdict {
	case prove.Leak:
		return errProblems
	case prove.Unproved:
		return errUnanswered
	default:
		return nil
	}
}

// surroundings are the Service's slices, and all nodes.
func (c cluster) surroundings(ctx context.Context, service *corev1.Service) ([]discoveryv1.EndpointSlice, map[string]prove.Node, error) {
	slicesOf := &discoveryv1.EndpointSliceList{}
	err := c.api.List(ctx, slicesOf, client.InNamespace(service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
	if err != nil {
		return nil, nil, fmt.Errorf("asking for endpointslices: %w", err)
	}
	nodes := map[string]prove.Node{}
	for token := ""; ; {
		list := &corev1.NodeList{}
		if err := c.api.List(ctx, list, client.Limit(500), client.Continue(token)); err != nil {
			return nil, nil, fmt.Errorf("asking for nodes, whose labels are the units: %w", err)
		}
		for i := range list.Items {
			nodes[list.Items[i].Name] = prove.NodeOf(&list.Items[i])
		}
		if token = list.Continue; token == "" {
			return slicesOf.Items, nodes, nil
		}
	}
}

// runner is what asks on the nodes.
func (o *proveOptions) runner(ctx context.Context, c cluster) (prove.Runner, error) {
	places, err := c.wrappers(ctx)
	if err != nil && (o.exec || o.image == "") {
		return nil, fmt.Errorf("asking for the wrappers' pods: %w", err)
	}
	if o.exec {
		config := rest.CopyConfig(c.config)
		config.APIPath, config.GroupVersion, config.NegotiatedSerializer = "/api", &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
		api, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, fmt.Errorf("making a client: %w", err)
		}
		return &prove.Exec{Command: c.execIn(api), Places: places, Probe: o.probe, Path: o.path}, nil
	}
	var any prove.Place
	for _, place := range places {
		if any.Pod == "" || place.Pod < any.Pod {
			any = place
		}
	}
	if o.image == "" && any.Image == "" {
		return nil, errors.New("there is no pod of the wrapper in this cluster whose image could be used: name one with --image")
	}
	pods := &prove.Pods{
		API: c.api, Namespace: o.podNamespace, Probe: o.probe, Alive: o.timeout,
		ImageOn: func(node string) (string, []corev1.LocalObjectReference) {
			place, ok := places[node]
			if !ok {
				place = any
			}
			if o.image != "" {
				place.Image = o.image
			}
			return place.Image, place.PullSecrets
		},
	}
	if err := pods.RemoveLeftovers(ctx); err != nil {
		c.warn("pods that an earlier run may have left in %s are not removed: %s", o.podNamespace, whyNot(err))
	}
	return pods, nil
}

// wrappers are the wrappers' pods that run, by node.
func (c cluster) wrappers(ctx context.Context) (map[string]prove.Place, error) {
	places := map[string]prove.Place{}
	for token := ""; ; {
		list := &corev1.PodList{}
		err := c.api.List(ctx, list, client.MatchingLabels{"app": "application-grid-wrapper"}, client.Limit(500), client.Continue(token))
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			p := &list.Items[i]
			if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || len(p.Spec.Containers) == 0 {
				continue
			}
			container := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == "application-grid-wrapper" })
			found := p.Spec.Containers[max(container, 0)]
			places[p.Spec.NodeName] = prove.Place{
				Namespace: p.Namespace, Pod: p.Name, Container: found.Name, Image: found.Image, PullSecrets: p.Spec.ImagePullSecrets,
			}
		}
		if token = list.Continue; token == "" {
			return places, nil
		}
	}
}

// execIn runs a command in a pod.
func (c cluster) execIn(api rest.Interface) func(context.Context, prove.Place, []string) ([]byte, error) {
	return func(ctx context.Context, in prove.Place, command []string) ([]byte, error) {
		request := api.Post().Resource("pods").Namespace(in.Namespace).Name(in.Pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: in.Container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
		executor, err := remotecommand.NewWebSocketExecutor(c.config, "GET", request.URL().String())
		if err != nil {
			return nil, err
		}
		var out, problems bytes.Buffer
		if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &problems}); err != nil {
			return out.Bytes(), fmt.Errorf("%w %s", err, strings.TrimSpace(problems.String()))
		}
		return out.Bytes(), nil
	}
}

// columnUnits is how many units a table has a column for.
const columnUnits = 8

// printProof prints the answer of prove.
func printProof(out io.Writer, proof *prove.Proof, requests int, output format) error {
	if done, err := printEncoded(out, proof, output); done {
		return err
	}
	fmt.Fprintf(out, "Service %s/%s, topologyKeys [%s]: %s to %s from a node of each unit\n\n", proof.Namespace, proof.Service,
		quoted(proof.TopologyKeys), count(requests, "connection"), proof.Address)
	columns := slices.Clone(proof.Units)
	for _, row := range proof.Rows {
		for where := range row.Reached {
			if !slices.Contains(columns, where) {
				columns = append(columns, where)
			}
		}
	}
	few := len(columns) <= columnUnits
	header := []string{"from"}
	if few {
		header = append(header, columns...)
	} else {
		header = append(header, "own unit", "others")
	}
	rows := [][]string{append(header, "nobody", "")}
	for _, row := range proof.Rows {
		from := row.Unit
		if row.Node != "" {
			from += " (" + row.Node + ")"
		}
		cells := []string{from}
		if few {
			for _, unit := range columns {
				cells = append(cells, times(row.Reached[unit]))
			}
		} else {
			others := 0
			for unit, n := range row.Reached {
				if unit != row.Unit {
					others += n
				}
			}
			cells = append(cells, times(row.Reached[row.Unit]), times(others))
		}
		verdict := "ok"
		switch row.Verdict {
		case prove.Leak:
			verdict = "LEAK"
		case prove.Unproved:
			verdict = "unproved"
		default:
		}
		if row.Message != "" {
			verdict += ": " + oneLine(row.Message)
		}
		rows = append(rows, append(cells, times(row.Nobody), verdict))
	}
	printCounts(out, rows)
	switch proof.Verdict {
	case prove.Leak:
		fmt.Fprintln(out, "\nThe closed loop does not hold: connections left their unit. kubectl grid check looks for the reason.")
	case prove.Unproved:
		fmt.Fprintln(out, "\nThat the closed loop holds is not proved; no connection was seen to leave its unit.")
	default:
		fmt.Fprintln(out, "\nThe closed loop holds: no connection left its unit.")
	}
	return nil
}

// printCounts prints rows with the first and the last column to the left, and counts to the right.
func printCounts(out io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			switch {
			case i == 0:
				line.WriteString(cell + space)
			case i == len(row)-1:
				line.WriteString("   " + cell)
			default:
				line.WriteString("   " + space + cell)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

// times is a count as a table has it.
func times(n int) string {
	if n == 0 {
		return "·"
	}
	return strconv.Itoa(n)
}

func quoted(texts []string) string {
	parts := make([]string, 0, len(texts))
	for _, text := range texts {
		parts = append(parts, strconv.Quote(text))
	}
	return strings.Join(parts, ", ")
}
