package check

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/program/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// system is the namespace of manifests/ and of kube-proxy.
const system = metav1.NamespaceSystem

// The names of kinds in findings that they could not be read.
const (
	kindNode       = "Node"
	kindPod        = "Pod"
	kindConfigMap  = "ConfigMap"
	kindDaemonSet  = "DaemonSet"
	kindCRD        = "CustomResourceDefinition"
	kindPolicy     = "MutatingAdmissionPolicy"
	kindService    = "Service"
	kindFelix      = "FelixConfiguration"
	kindDeployment = "Deployment"
	kindAPIService = "APIService"
	kindLease      = "Lease"
	// podElsewhere stands for the pods of other namespaces than kube-system, where those alone could be read.
	podElsewhere = "Pod of another namespace"
)

// The kinds besides those of the grids that the client has to know.
var (
	felixKind  = schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: kindFelix}
	crdKind    = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: kindCRD}
	apiKind    = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: kindAPIService}
	policyKind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kindPolicy}
)

// leaseOver is the age up to which a Lease counts as that of a leading controller.
const leaseOver = 2 * time.Minute

// kubeDNS is the Service of CoreDNS in most clusters, and in all of them the value of the label labelApp of its pods.
const (
	kubeDNS  = "kube-dns"
	labelApp = "k8s-app"
)

const hubAPIName = "v1alpha1.hub." + v1.GroupName

// policyName is the name of the policy in manifests/kubeadm/kube-proxy-policy.yaml, and of its binding.
const policyName = "kube-proxy." + v1.GroupName

// RootKinds are the cluster-scoped kinds that are read, and FurtherKinds the namespaced ones that AddToScheme does not
// add.
var (
	RootKinds = []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind(kindNode), corev1.SchemeGroupVersion.WithKind("Namespace"),
		authorizationv1.SchemeGroupVersion.WithKind("SelfSubjectAccessReview"), felixKind, crdKind, apiKind,
		policyKind, policyKind.GroupVersion().WithKind(kindPolicy + "Binding"),
	}
	FurtherKinds = []schema.GroupVersionKind{ciliumConfigKind}
)

// AddToScheme adds the kinds that are read with their types.
func AddToScheme(scheme *runtime.Scheme) error {
	builder := runtime.NewSchemeBuilder(corev1.AddToScheme, appsv1.AddToScheme, authorizationv1.AddToScheme,
		coordinationv1.AddToScheme, discoveryv1.AddToScheme, v1.AddToScheme)
	return builder.AddToScheme(scheme)
}

// Source is the source of a Cluster.
type Source struct {
	API client.Client
	// Server is the result of AskServer.
	Server Server
	// Now is the time with which ends of validity are compared.
	Now time.Time
}

// Server is the version of the API server, and when its certificate ends.
type Server struct {
	Version        string
	CertificateEnd time.Time
}

// AskServer asks the API server for its version, and reads the end of its certificate.
func AskServer(ctx context.Context, config *rest.Config) (Server, error) {
	var answer Server
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return certificateWatcher{next, &answer} })
	api, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return Server{}, err
	}
	info, err := api.ServerVersionWithContext(ctx)
	if err != nil {
		return Server{}, err
	}
	answer.Version = info.GitVersion
	return answer, nil
}

// certificateWatcher notes when the certificate of a server ends.
type certificateWatcher struct {
	http.RoundTripper

	to *Server
}

func (w certificateWatcher) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.RoundTripper.RoundTrip(request)
	if err == nil && response.TLS != nil && len(response.TLS.PeerCertificates) > 0 {
		w.to.CertificateEnd = response.TLS.PeerCertificates[0].NotAfter
	}
	return response, err
}

// readCluster reads the data that both Before and After need.
func readCluster(ctx context.Context, source Source) *Cluster {
	c := &Cluster{Source: source, documents: map[Object]*document{}, carries: map[Object]bool{},
		proxies: map[string]*proxyConfig{}, missing: map[string]bool{}, felixBPF: map[string]string{},
		ofGrids: map[Object]metav1.Object{}, definitions: map[string]*unstructured.Unstructured{}}
	c.readCiliumConfigs(ctx)
	c.readNodes(ctx)
	c.readWorkloads(ctx, kindDaemonSet, &appsv1.DaemonSetList{})
	c.readWorkloads(ctx, kindDeployment, &appsv1.DeploymentList{})
	c.readWorkloads(ctx, "StatefulSet", &appsv1.StatefulSetList{})
	c.readSurroundings(ctx)
	c.readServices(ctx)
	return c
}

// lost notes that an object or a kind could not be read, if there is an error.
func (c *Cluster) lost(about Object, err error, consequence string) {
	if err != nil {
		c.missing[about.Kind] = true
		c.unread = append(c.unread, Unread(about, err, consequence))
	}
}

// Unread returns the finding that something could not be read.
func Unread(about Object, err error, consequence string) Finding {
	return Finding{
		Severity: Unknown, Check: gridview.CheckRead, Object: about,
		Message: fmt.Sprintf("it could not be read, and %s: %s", consequence, output.WhyNot(err)),
		Action:  "ask again as somebody who may read it",
	}
}

// object reads an object that a cluster may lack; nil if it does, or if the object could not be read.
func (c *Cluster) object(ctx context.Context, kind schema.GroupVersionKind, name, consequence string,
) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	if err := c.API.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
		c.lost(Object{Kind: kind.Kind, Name: name}, client.IgnoreNotFound(err), consequence)
		return nil
	}
	return object
}

// readNodes reads the nodes, and the pods in their network: all of ours, every kube-proxy, and others that can use a
// port of a node.
func (c *Cluster) readNodes(ctx context.Context) {
	var err error
	c.nodes, err = pages.Keep(ctx, c.API, &corev1.NodeList{}, func(n *corev1.Node) (*node, bool) {
		return nodeOf(n), true
	})
	c.lost(Object{Kind: kindNode}, err, "which nodes are edge nodes is not known, and nothing is said of any")
	read := func(options ...client.ListOption) error {
		c.pods = nil
		return pages.Each(ctx, c.API, &corev1.PodList{}, func(p *corev1.Pod) {
			if p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
				for _, container := range containersOf(&p.Spec) {
					c.pods = append(c.pods, c.podOf(ctx, p, container))
				}
			}
		}, options...)
	}
	err = read(client.MatchingFields{"spec.hostNetwork": "true"})
	if apierrors.IsBadRequest(err) { // older than Kubernetes 1.28
		err = read()
	}
	if apierrors.IsForbidden(err) && read(client.InNamespace(system)) == nil {
		c.missing[podElsewhere] = true
		c.unread = append(c.unread, Unread(Object{Kind: kindPod}, err,
			"only those in "+system+" were looked at; who else takes a port of a node is not known"))
	} else {
		c.lost(Object{Kind: kindPod}, err, "what runs on the edge nodes is not known")
	}
	byNode := map[string][]*pod{}
	for _, p := range c.pods {
		if !p.ending {
			byNode[p.node] = append(byNode[p.node], p)
		}
	}
	for _, n := range c.nodes {
		n.pods = byNode[n.Name]
	}
}

// partOf reduces a container of a pod or of a workload's pods. Those of one revision of a DaemonSet are configured
// alike.
func (c *Cluster) partOf(ctx context.Context, about Object, spec *corev1.PodSpec, of *corev1.Container,
	revision string) part {
	p := part{Object: about, program: programOf(of), image: of.Image, takesPort: takesPort(of, spec.HostNetwork)}
	switch p.program {
	case kubeProxyProgram:
		if c.proxies[revision] == nil {
			c.proxies[revision] = c.proxyConfigOf(ctx, about.Namespace, spec, of)
		}
		p.proxy = c.proxies[revision]
	case wrapperProgram, daemonProgram, controllerProgram:
	default:
		return p
	}
	for i := range spec.Volumes {
		for _, source := range sourcesOf(about.Namespace, &spec.Volumes[i]) {
			c.carries[source.Object] = true
		}
	}
	return p
}

// podOf reduces a pod to what matters for one of its containers.
func (c *Cluster) podOf(ctx context.Context, p *corev1.Pod, of *corev1.Container) *pod {
	about, owner := named(kindPod, p.Namespace, p.Name), Object{}
	revision := about.String()
	if by := metav1.GetControllerOf(p); by != nil {
		owner = named(by.Kind, p.Namespace, by.Name)
	}
	if hash := p.Labels[appsv1.ControllerRevisionHashLabelKey]; hash != "" {
		revision = owner.String() + " " + hash
	}
	reduced := &pod{
		part: c.partOf(ctx, about, &p.Spec, of, revision), owner: owner, node: p.Spec.NodeName,
		ending: p.DeletionTimestamp != nil, created: p.CreationTimestamp.Time, ready: gridview.IsReady(p),
		waitsFor: meantFor(&p.Spec), unreadySince: gridview.PodCondition(p, corev1.PodReady).LastTransitionTime.Time,
	}
	if !reduced.ready {
		reduced.why = gridview.PodProblem(p)
	}
	for _, status := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if status.Name == of.Name && status.State.Running != nil {
			reduced.started = status.State.Running.StartedAt.Time
		}
	}
	words := commandLine(of)
	switch reduced.program {
	case wrapperProgram:
		reduced.port, reduced.scheme = defaultPort, "http"
		if address, given := flagOf(words, "bind-address", ""); given {
			reduced.port = portOf(address)
		}
		if !boolFlag(words, "insecure", true) {
			reduced.scheme = "https"
		}
		reduced.hostname = hostnameOf(of, p.Spec.NodeName)
	case nodeLocalProgram:
		upstream, _ := flagOf(words, "upstreamsvc", "")
		reduced.upstream = cmp.Or(upstream, kubeDNS) // as it does
	default:
	}
	return reduced
}

// meantFor returns the node for which a DaemonSet made a pod that has none yet.
func meantFor(spec *corev1.PodSpec) string {
	if spec.NodeName != "" {
		return ""
	}
	for _, term := range requiredTerms(spec) {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// requiredTerms returns the terms of a required node affinity; nil without an affinity. At least one of them must
// match.
func requiredTerms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	affinity := ptr.Deref(ptr.Deref(spec.Affinity, corev1.Affinity{}).NodeAffinity, corev1.NodeAffinity{})
	return ptr.Deref(affinity.RequiredDuringSchedulingIgnoredDuringExecution, corev1.NodeSelector{}).NodeSelectorTerms
}

func (c *Cluster) readWorkloads(ctx context.Context, kind string, list client.ObjectList) {
	err := pages.Each(ctx, c.API, list, func(item client.Object) {
		about, w := named(kind, item.GetNamespace(), item.GetName()), workload{}
		var template *corev1.PodTemplateSpec
		var selector *metav1.LabelSelector
		switch o := item.(type) {
		case *appsv1.DaemonSet:
			template, w.desired, w.ready = &o.Spec.Template, o.Status.DesiredNumberScheduled, o.Status.NumberReady
			w.onDelete = o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
		case *appsv1.Deployment:
			template, selector = &o.Spec.Template, o.Spec.Selector
			w.desired, w.ready = ptr.Deref(o.Spec.Replicas, 1), o.Status.AvailableReplicas
		case *appsv1.StatefulSet:
			template = &o.Spec.Template
		default:
			return
		}
		w.placement(&template.Spec)
		w.bypass = bypassOf(about.Name, &template.Spec)
		containers := containersOf(&template.Spec)
		if len(containers) == 0 && (w.selectsEdge || w.bypass != nil) {
			containers = []*corev1.Container{{}}
		}
		for _, of := range containers {
			one := w
			one.part = c.partOf(ctx, about, &template.Spec, of, about.String())
			one.env, one.hub = envOf(of), boolFlag(commandLine(of), "hub", false)
			if one.program == controllerProgram && w.ready < w.desired {
				one.problem = c.problem(ctx, about.Namespace, selector)
			}
			c.workloads = append(c.workloads, &one)
		}
	})
	c.lost(Object{Kind: kind}, err, "those that run one of the programs, or take the wrapper's port, are not known")
}

// problem returns the problem of a workload's first pod that is not ready, as the end of a sentence; "" if it is not
// known.
func (c *Cluster) problem(ctx context.Context, namespace string, of *metav1.LabelSelector) string {
	selector, err := metav1.LabelSelectorAsSelector(of)
	list := &corev1.PodList{}
	if err != nil || c.API.List(ctx, list, client.InNamespace(namespace),
		client.MatchingLabelsSelector{Selector: selector}, client.Limit(pages.Size)) != nil {
		return "" // missing pods are reported nevertheless
	}
	problem := gridview.FirstPodProblem(list.Items, "", "")
	if problem != "" {
		problem = ": " + problem
	}
	return problem
}

// readServices reads the Services that have topologyKeys, and the pods of CoreDNS.
func (c *Cluster) readServices(ctx context.Context) {
	var err error
	known := c.diagnosis(nil)
	groupings := &gridview.Groupings{Nodes: known.Nodes, Diagnosis: known}
	c.services, err = pages.Keep(ctx, c.API, &corev1.ServiceList{}, func(o *corev1.Service) (service, bool) {
		if o.Namespace == system && (o.Name == kubeDNS || o.Spec.Selector[labelApp] == kubeDNS) {
			c.dns = append(c.dns, o.Name)
		}
		s := service{about: named(kindService, o.Namespace, o.Name)}
		if strings.HasSuffix(o.Name, v1.ServiceSuffix) {
			c.ofGrids[s.about] = &metav1.ObjectMeta{Name: o.Name, Annotations: o.Annotations,
				OwnerReferences: o.OwnerReferences}
		}
		s.keys, s.annotation, s.err = topology.KeysOf(o.Annotations)
		if s.err == nil && gridview.HasSites(s.keys) {
			s.tally = groupings.Of(s.keys).NewTally(o)
		}
		return s, s.annotation != "" && o.Spec.Type != corev1.ServiceTypeExternalName // which has no endpoints
	})
	c.lost(Object{Kind: kindService}, err, "the sites, and whose topologyKeys do not parse, is not known")
	resolvers, err := pages.Keep(ctx, c.API, &corev1.PodList{}, func(p *corev1.Pod) (string, bool) {
		return p.Spec.NodeName, known.Silent[p.Spec.NodeName] || p.DeletionTimestamp == nil && gridview.IsReady(p)
	}, client.InNamespace(system), client.MatchingLabels{labelApp: kubeDNS})
	if err == nil && len(resolvers) > 0 { // other resolvers than CoreDNS are not known here
		c.coreDNS = map[string]bool{}
		for _, node := range resolvers {
			c.coreDNS[node] = true
		}
	}
}

// readEndpoints counts the endpoints of the governed Services.
func (c *Cluster) readEndpoints(ctx context.Context) {
	tallies := map[Object]*gridview.Tally{}
	for _, s := range c.services {
		if s.tally != nil {
			tallies[s.about] = s.tally
		}
	}
	c.reachKnown = c.knows(kindNode, kindService)
	if len(tallies) == 0 || !c.reachKnown {
		return
	}
	err := pages.Each(ctx, c.API, &discoveryv1.EndpointSliceList{}, func(s *discoveryv1.EndpointSlice) {
		if tally := tallies[named(kindService, s.Namespace, s.Labels[discoveryv1.LabelServiceName])]; tally != nil {
			tally.Add(s)
		}
	})
	c.reachKnown = err == nil
	c.lost(Object{Kind: "EndpointSlice"}, err, "whether each site reaches the Services is not known")
}

// readSurroundings reads the few objects that show how the cluster was made.
func (c *Cluster) readSurroundings(ctx context.Context) {
	c.kubeadm = c.document(ctx, named(kindConfigMap, system, "kubeadm-config"),
		"whether kubeadm made this cluster is not known for sure").err == nil
	for _, cilium := range c.running(ciliumProgram) {
		c.document(ctx, ciliumDefaults(cilium), whomCiliumAsks)
	}
	if len(c.running(calicoProgram)) > 0 {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(felixKind.GroupVersion().WithKind(kindFelix + "List"))
		err := pages.Each(ctx, c.API, list, func(felix *unstructured.Unstructured) {
			if enabled, found, _ := unstructured.NestedBool(felix.Object, "spec", "bpfEnabled"); found {
				c.felixBPF[felix.GetName()] = strconv.FormatBool(enabled)
			}
		})
		c.lost(Object{Kind: kindFelix}, client.IgnoreNotFound(err),
			"whether Calico takes kube-proxy's place is not known")
	}
	const consequence = "whether an upgrade by kubeadm keeps off edge nodes is not known"
	c.policy = c.object(ctx, policyKind, policyName, consequence) != nil &&
		c.object(ctx, policyKind.GroupVersion().WithKind(kindPolicy+"Binding"), policyName, consequence) != nil
	if hub := c.object(ctx, apiKind, hubAPIName, "whether a hub is installed is not known"); hub != nil {
		c.hubAPI, c.hubAway = true, unmet(hub, "Available") // kube-apiserver answers 503 then
	}
}

// readLease reads whether a controller leads that is not a Deployment of this cluster.
func (c *Cluster) readLease(ctx context.Context) {
	if !c.knows(kindDeployment) || len(c.installed(controllerProgram)) > 0 {
		return
	}
	about, lease := named(kindLease, system, string(controllerProgram)), &coordinationv1.Lease{}
	err := c.API.Get(ctx, client.ObjectKey{Namespace: about.Namespace, Name: about.Name}, lease)
	c.lost(about, client.IgnoreNotFound(err),
		"whether a controller outside of the cluster works on the grids is not known")
	c.leads = err == nil && c.Now.Sub(ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time) < leaseOver
}

func (c *Cluster) readGrids(ctx context.Context) {
	for _, kind := range v1.Kinds {
		name := kind.Plural + "." + v1.GroupName
		crd := c.object(ctx, crdKind, name, "its version is not known, nor the state of such grids")
		if crd == nil {
			continue
		}
		c.definitions[name] = crd
		found, err := pages.Keep(ctx, c.API, kind.NewList(), func(object v1.Object) (grid, bool) {
			g := grid{about: named(kind.Kind, object.GetNamespace(), object.GetName()), trouble: c.gridTrouble(object)}
			if spec, _ := v1.SpecAndStatus(object); spec != nil {
				g.key = spec.GridUniqKey
			}
			return g, true
		})
		c.grids = append(c.grids, found...)
		c.lost(Object{Kind: kind.Kind}, err, "their state is not known")
	}
}

// unmet returns why a condition of an object is not True, in words; "" if it is.
func unmet(object *unstructured.Unstructured, name string) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, entry := range conditions {
		if condition, _ := entry.(map[string]any); condition["type"] == name && condition["status"] == "True" {
			return ""
		} else if condition["type"] == name {
			return fmt.Sprintf("%v: %v", condition["reason"], condition["message"])
		}
	}
	return "it has no condition " + name
}

// changeAnswered is how long the controller may take to react to a change of a grid.
const changeAnswered = time.Minute

// gridTrouble returns the messages of a grid's conditions if it is stalled or degraded, and why its status is not that
// of its present spec.
func (c *Cluster) gridTrouble(object v1.Object) string {
	conditions, _ := gridview.StatusOf(object)
	var trouble []string
	for _, name := range []string{v1.ConditionStalled, v1.ConditionDegraded} {
		if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
			trouble = append(trouble, fmt.Sprintf("%s (%s): %s", name, c.Reason, c.Message))
		}
	}
	if late := gridview.Unanswered(object); late != "" && c.Now.Sub(changed(object)) > changeAnswered {
		trouble = append(trouble, late)
	}
	if of, ok := object.(*v1.ServiceGrid); ok && c.knows(kindService) && len(trouble) == 0 &&
		gridview.Unanswered(of) == "" && of.DeletionTimestamp == nil {
		return gridview.CompareService(of, c.ofGrids[named(kindService, of.Namespace, of.Name+v1.ServiceSuffix)])
	}
	return strings.Join(trouble, "; ")
}
