package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
)

// demoStateful is the demo's StatefulSetGrid and ServiceGrid.
const demoStateful = "db"

// names shows what the same name is on every node: the pod of the node's own site.
func (d *demo) names(ctx context.Context) error {
	name := fmt.Sprintf("%s-0.%s-svc.%s.svc.cluster.local", demoStateful, demoStateful, demoNamespace)
	fmt.Printf("\n6. The same name in every site: dig %s, on each node\n\n", name)
	if err := d.bringHome(ctx); err != nil {
		return err
	}
	var wrong []string
	for _, node := range d.cluster.Nodes() {
		site := d.sites[node.Spec.Name]
		answer, pod, err := d.own(ctx, node, name, demoStateful+"-"+site+"-0")
		if err != nil {
			return err
		}
		verdict := "ok"
		if answer != pod {
			verdict = "WRONG"
			wrong = append(wrong, fmt.Sprintf("on %s it should be %s", node.Spec.Name, pod))
		}
		fmt.Printf("   %-22s %-14s pod %s-%s-0   %s\n", fmt.Sprintf("%s (%s)", node.Spec.Name, site), answer,
			demoStateful, site, verdict)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %s", errWrong, strings.Join(wrong, "; "))
	}
	return nil
}

// bringHome deletes the pods that are on a node which has moved to another site: they have no name until their
// StatefulSet has made them again, on a node of their site.
func (d *demo) bringHome(ctx context.Context) error {
	pods, err := d.cluster.Client().CoreV1().Pods(demoNamespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app=" + demoStateful})
	if err != nil {
		return fmt.Errorf("listing the pods of %s: %w", demoStateful, err)
	}
	for _, pod := range pods.Items {
		site := d.sites[pod.Spec.NodeName]
		if strings.HasPrefix(pod.Name, demoStateful+"-"+site+"-") {
			continue
		}
		fmt.Printf("   %s runs on %s, which has moved to %s. Its StatefulSet recreates it in its own site:\n",
			pod.Name, pod.Spec.NodeName, site)
		fmt.Printf("   $ kubectl delete pod %s\n", pod.Name)
		if err := d.kubectl(ctx, "delete", "pod", pod.Name); err != nil {
			return err
		}
		fmt.Println()
	}
	return nil
}

// own waits until a node's CoreDNS answers with the pod's address, and returns both as they were seen last.
func (d *demo) own(ctx context.Context, node *cluster.Node, name, pod string) (answer, address string, err error) {
	waiting, cancel := context.WithTimeout(ctx, demoDeadline)
	defer cancel()
	for {
		object, err := d.cluster.Client().CoreV1().Pods(demoNamespace).Get(waiting, pod, metav1.GetOptions{})
		if err == nil {
			address = object.Status.PodIP
		}
		answers, err := node.Lookup(waiting, name, "A")
		answer = strings.Join(answers, " ")
		if err != nil {
			answer = "no answer"
		}
		if address != "" && slices.Equal(answers, []string{address}) {
			return answer, address, nil
		}
		select {
		case <-waiting.Done():
			return answer, address, ctx.Err()
		case <-time.After(lookInterval):
		}
	}
}
