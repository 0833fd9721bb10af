package kubeadm_test

import (
	"context"
	"fmt"
	"net"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
)

// statefulGrid is a pod with a stateful name in every site.
const statefulGrid = `apiVersion: superedge.io/v1
kind: StatefulSetGrid
metadata: {name: db, namespace: default}
spec:
  gridUniqKey: ` + operate.SiteLabel + `
  template:
    serviceName: db-svc
    replicas: 1
    selector: {matchLabels: {app: db}}
    template:
      metadata: {labels: {app: db}}
      spec: {containers: [{name: db, image: ` + kubeadm.EchoImage + `}]}
---
apiVersion: superedge.io/v1
kind: ServiceGrid
metadata: {name: db, namespace: default}
spec:
  gridUniqKey: ` + operate.SiteLabel + `
  template: {selector: {app: db}, ports: [{port: 8080}]}
`

// expectName waits until the cluster's DNS, asked from the node as its pods ask, answers statefulGrid's name with the
// pod of this site, and then asks it so often that every CoreDNS would be met.
func (o *operator) expectName(node, site string) {
	o.Helper()
	resolver := resolver(shared.Node(node), o.dnsAddress())
	ask := func() error {
		pod, err := o.Client.CoreV1().Pods(metav1.NamespaceDefault).Get(o.Context(), "db-"+site+"-0",
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, err := resolver.LookupHost(o.Context(), "db-0.db-svc.default.svc.cluster.local.")
		if err == nil && (!slices.Equal(got, []string{pod.Status.PodIP}) || pod.Spec.NodeName != node) {
			err = fmt.Errorf("the answer is %v; %s on %s has %s", got, pod.Name, pod.Spec.NodeName, pod.Status.PodIP)
		}
		return err
	}
	// One right answer may be chance: until kube-proxy's rules follow the annotation, any CoreDNS may be asked.
	o.Eventually("db-0 is, from "+node+", the pod of "+site, func() error {
		for range 10 {
			if err := ask(); err != nil {
				return err
			}
		}
		return nil
	})
	for range 30 {
		if err := ask(); err != nil {
			o.Errorf("from %s: %v", node, err)
		}
	}
}

// dnsAddress is where the cluster's DNS is asked.
func (o *operator) dnsAddress() string {
	o.Helper()
	service, err := o.Client.CoreV1().Services(metav1.NamespaceSystem).Get(o.Context(), "kube-dns", metav1.GetOptions{})
	o.Must(err)
	return net.JoinHostPort(service.Spec.ClusterIP, "53")
}

// resolver asks the DNS at this address from a node, as its pods do.
func resolver(node *kubeadm.Node, dns string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return node.DialContext(ctx, network, dns)
	}}
}

// checkSiteCommands runs kubectl grid logs and exec, by the real kubectl and the node's container runtime, on the pod
// of statefulGrid in this site.
func (o *operator) checkSiteCommands(site string) {
	o.Helper()
	pod := "db-" + site + "-0"
	if got := o.Shell("kubectl grid logs ssg/db --site " + site + " -- --tail=1"); got != "serving in "+pod+"\n" {
		o.Errorf("logs of %s: %q", site, got)
	}
	inside := "kubectl grid exec ssg/db --site " + site + " -- /usr/local/bin/echo "
	if got := o.Shell(inside + "hostname"); got != pod+"\n" {
		o.Errorf("exec in %s: %q", site, got)
	}
	// The exit code is that of the command in the pod.
	if got := o.Shell(inside + "x 2>errors || echo $?"); got != "2\n" {
		o.Errorf("exec of a command that fails in %s ended with %q", site, got)
	}
}
