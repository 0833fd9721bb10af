package columns

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

var serviceColumns = []metav1.TableColumnDefinition{
	nameColumn(),
	text("Type", corev1.ServiceSpec{}.SwaggerDoc()["type"]),
	text("Cluster-IP", corev1.ServiceSpec{}.SwaggerDoc()["clusterIP"]),
	text("External-IP", corev1.ServiceSpec{}.SwaggerDoc()["externalIPs"]),
	text("Port(s)", corev1.ServiceSpec{}.SwaggerDoc()["ports"]),
	ageColumn(),
	wideText("Selector", corev1.ServiceSpec{}.SwaggerDoc()["selector"]),
}

func serviceCells(s *corev1.Service, now time.Time) []any {
	clusterIP := none
	switch {
	case len(s.Spec.ClusterIPs) > 0:
		clusterIP = s.Spec.ClusterIPs[0]
	case s.Spec.ClusterIP != "":
		// This Service was written before Kubernetes 1.20. Newer API servers fill in the list when they read such a
		// Service.
		clusterIP = s.Spec.ClusterIP
	}
	return []any{
		s.Name, string(s.Spec.Type), clusterIP, externalIPs(s), servicePorts(s.Spec.Ports),
		age(s.CreationTimestamp, now),
		labels.FormatLabels(s.Spec.Selector),
	}
}

// externalIPs returns the addresses by which a Service is reached from outside. It returns all of them: kube-apiserver
// makes its tables for --output=wide too, and never shortens this column.
func externalIPs(s *corev1.Service) string {
	addresses := s.Spec.ExternalIPs
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		addresses = append(balancers(s.Status.LoadBalancer.Ingress), addresses...)
		if len(addresses) == 0 {
			return "<pending>"
		}
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
	default:
		return unknown
	}
	if len(addresses) == 0 {
		return none
	}
	return strings.Join(addresses, ",")
}

// balancers returns the addresses of a load balancer, sorted, without duplicates.
func balancers(ingress []corev1.LoadBalancerIngress) []string {
	var addresses []string
	for _, i := range ingress {
		switch {
		case i.IP != "":
			addresses = append(addresses, i.IP)
		case i.Hostname != "":
			addresses = append(addresses, i.Hostname)
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}

func servicePorts(ports []corev1.ServicePort) string {
	if len(ports) == 0 {
		return none
	}
	shown := make([]string, len(ports))
	for i, p := range ports {
		shown[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			shown[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return strings.Join(shown, ",")
}
