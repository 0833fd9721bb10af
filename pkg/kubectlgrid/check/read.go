package check

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// system is where manifests/ work, and kube-proxy is.
const system = metav1.NamespaceSystem

// Kinds that are named like this when they could not be read.
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
)

// Kinds besides those of the grids that the client has to know.
var (
	felixKind  = schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: kindFelix}
	crdKind    = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: kindCRD}
	leaseKind  = schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}
	apiKind    = schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: kindAPIService}
	policyKind = schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: kindPolicy}
)

// leaseOver is how long a Lease that nobody renews says that a controller leads.
const leaseOver = 2 * time.Minute

// hubAPIName is the name of the hub's APIService.
const hubAPIName = "v1alpha1.hub." + v1.GroupName

// policyName is that of manifests/kubeadm/kube-proxy-policy.yaml, and of its binding.
const policyName = "kube-proxy." + v1.GroupName

// RegisterKinds tells a mapper of the kinds that are read, so that the client needs no look at everything that the API
// server serves.
func RegisterKinds(mapper *meta.DefaultRESTMapper) {
	for _, kinds := range []struct {
		scope meta.RESTScope
		group schema.GroupVersion
		names []string
	}{
		{meta.RESTScopeRoot, corev1.SchemeGroupVersion, []string{kindNode, "Namespace"}},
		{meta.RESTScopeNamespace, corev1.SchemeGroupVersion, []string{kindPod, kindConfigMap, "Secret", kindService}},
		{meta.RESTScopeNamespace, appsv1.SchemeGroupVersion, []string{kindDaemonSet, kindDeployment, "StatefulSet"}},
		{meta.RESTScopeRoot, authorizationv1.SchemeGroupVersion, []string{"SelfSubjectAccessReview"}},
		{meta.RESTScopeRoot, felixKind.GroupVersion(), []string{kindFelix}},
		{meta.RESTScopeRoot, crdKind.GroupVersion(), []string{kindCRD}},
		{meta.RESTScopeRoot, apiKind.GroupVersion(), []string{kindAPIService}},
		{meta.RESTScopeNamespace, leaseKind.GroupVersion(), []string{"Lease"}},
		{meta.RESTScopeRoot, policyKind.GroupVersion(), []string{kindPolicy + "Binding"}},
		{meta.RESTScopeNamespace, ciliumConfigKind.GroupVersion(), []string{ciliumConfigKind.Kind}},
	} {
		for _, name := range kinds.names {
			mapper.Add(kinds.group.WithKind(name), kinds.scope)
		}
	}
	mapper.AddSpecific(policyKind, policyKind.GroupVersion().WithResource("mutatingadmissionpolicies"),
		policyKind.GroupVersion().WithResource("mutatingadmissionpolicy"), meta.RESTScopeRoot)
}

// AddToScheme adds the kinds that are read with their types.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, authorizationv1.AddToScheme, v1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	return nil
}

// Source is where a Cluster is read from.
type Source struct {
	API client.Client
	// Server is what AskServer has answered.
	Server Server
	// Now is the time that ends are compared with.
	Now time.Time
}

// reader reads a Cluster.
type reader struct {
	Source

	cluster *Cluster
}

// readCluster reads what both questions need.
func readCluster(ctx context.Context, source Source) *reader {
	r := &reader{Source: source, cluster: &Cluster{
		now: source.Now, documents: &documents{api: source.API, read: map[Object]*document{}},
		carries: map[Object]bool{}, gridCounts: map[string]int{}, missing: map[string]bool{},
	}}
	r.cluster.version, r.cluster.certificateEnd = source.Server.Version, source.Server.CertificateEnd
	r.ciliumConfigs(ctx)
	r.nodes(ctx)
	r.pods(ctx)
	r.workloads(ctx, kindDaemonSet, &appsv1.DaemonSetList{})
	r.workloads(ctx, kindDeployment, &appsv1.DeploymentList{})
	r.workloads(ctx, "StatefulSet", &appsv1.StatefulSetList{})
	r.surroundings(ctx)
	r.services(ctx)
	return r
}

// lost notes that something could not be read. An API server that does not know a kind has none of it, which is no
// loss.
func (r *reader) lost(about Object, err error, consequence string) {
	r.cluster.missing[about.Kind] = true
	r.cluster.failed = append(r.cluster.failed, unread{about, err, consequence})
}

func (r *reader) nodes(ctx context.Context) {
	c := r.cluster
	restart := func() { c.nodes = nil }
	err := pages.Each(ctx, r.API, &corev1.NodeList{}, pages.To(restart, func(n *corev1.Node) {
		reduced := nodeOf(n)
		reduced.ciliumURLs = c.ciliumURLs(n.Labels)
		c.nodes = append(c.nodes, reduced)
	}))
	if err != nil {
		restart()
		r.lost(Object{Kind: kindNode}, err, "which nodes are edge nodes is not known, and nothing is said of any")
	}
}

// pods reads the pods in the nodes' network: all of ours, every kube-proxy, and whoever else can take a port of a node.
func (r *reader) pods(ctx context.Context) {
	c := r.cluster
	restart := func() { c.pods = nil }
	configs := map[string]*proxyConfig{}
	visit := func(p *corev1.Pod) {
		if p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			r.pod(ctx, p, configs)
		}
	}
	read := func(options ...client.ListOption) error {
		restart()
		return pages.Each(ctx, r.API, &corev1.PodList{}, pages.To(restart, visit), options...)
	}
	err := read(client.MatchingFields{"spec.hostNetwork": "true"})
	if apierrors.IsBadRequest(err) { // older than Kubernetes 1.28
		err = read()
	}
	switch {
	case err == nil:
	case apierrors.IsForbidden(err) && read(client.InNamespace(system)) == nil:
		r.cluster.failed = append(r.cluster.failed, unread{Object{Kind: kindPod}, err,
			"only those in " + system + " were looked at; who else takes a port of a node is not known"})
	default:
		restart()
		r.lost(Object{Kind: kindPod}, err, "what runs on the edge nodes is not known")
	}
}

// pod keeps a pod if it matters.
func (r *reader) pod(ctx context.Context, p *corev1.Pod, configs map[string]*proxyConfig) {
	program, container := programOf(&p.Spec)
	takes := takesPort(&p.Spec)
	if program == "" && !takes {
		return
	}
	reduced := &pod{
		namespace: p.Namespace, name: p.Name, node: p.Spec.NodeName, program: program, takesPort: takes,
		ending: p.DeletionTimestamp != nil, created: p.CreationTimestamp.Time, ready: gridview.IsReady(p),
	}
	if !reduced.ready {
		reduced.why, reduced.unreadySince = gridview.PodProblem(p), p.CreationTimestamp.Time
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && !c.LastTransitionTime.IsZero() {
				reduced.unreadySince = c.LastTransitionTime.Time
			}
		}
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		reduced.owner = owner.Kind + " " + owner.Name
	}
	if container != nil {
		reduced.image = container.Image
		for _, status := range p.Status.ContainerStatuses {
			if status.Name == container.Name && status.State.Running != nil {
				reduced.started = status.State.Running.StartedAt.Time
			}
		}
	}
	if p.Spec.NodeName == "" {
		reduced.waitsFor = meantFor(&p.Spec)
	}
	switch program {
	case wrapperProgram:
		reduced.port = defaultPort
		if address, given := flagOf(commandLine(container), "bind-address"); given {
			reduced.port = portOf(address)
		}
		r.carry(p.Namespace, &p.Spec)
	case kubeProxyProgram:
		// Pods of one revision of a DaemonSet are configured alike.
		revision := ""
		if hash := p.Labels[appsv1.ControllerRevisionHashLabelKey]; hash != "" {
			revision = p.Namespace + "/" + reduced.owner + "/" + hash
		}
		reduced.proxy = configs[revision]
		if reduced.proxy == nil {
			config := r.cluster.documents.proxyConfigOf(ctx, p.Namespace, &p.Spec, container)
			reduced.proxy = &config
			if revision != "" {
				configs[revision] = &config
			}
		}
		r.carry(p.Namespace, &p.Spec)
	case daemonProgram:
		r.carry(p.Namespace, &p.Spec)
	default:
	}
	r.cluster.pods = append(r.cluster.pods, reduced)
}

// carry notes the ConfigMaps and Secrets of a pod.
func (r *reader) carry(namespace string, spec *corev1.PodSpec) {
	for i := range spec.Volumes {
		for _, source := range sourcesOf(&spec.Volumes[i]) {
			r.cluster.carries[named(source.kind, namespace, source.name)] = true
		}
	}
}

// meantFor is the node that a DaemonSet made a pod for.
func meantFor(spec *corev1.PodSpec) string {
	for _, term := range requiredTerms(spec) {
		for _, field := range term.MatchFields {
			if field.Key == "metadata.name" && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

// requiredTerms are the terms of a required node affinity, of which one has to fit; none if there is no such affinity.
func requiredTerms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// workloads reads the workloads of one kind, in all namespaces.
func (r *reader) workloads(ctx context.Context, kind string, list client.ObjectList) {
	c := r.cluster
	before := len(c.workloads)
	restart := func() { c.workloads = c.workloads[:before] }
	err := pages.Each(ctx, r.API, list, pages.To(restart, func(item client.Object) {
		w := &workload{kind: kind, namespace: item.GetNamespace(), name: item.GetName()}
		var template *corev1.PodTemplateSpec
		switch o := item.(type) {
		case *appsv1.DaemonSet:
			template, w.desired, w.ready = &o.Spec.Template, o.Status.DesiredNumberScheduled, o.Status.NumberReady
			w.onDelete = o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
		case *appsv1.Deployment:
			template, w.selector = &o.Spec.Template, o.Spec.Selector
			w.desired, w.ready = ptr.Deref(o.Spec.Replicas, 1), o.Status.AvailableReplicas
		case *appsv1.StatefulSet:
			template = &o.Spec.Template
		default:
			return
		}
		r.workload(ctx, w, &template.Spec)
	}))
	if err != nil {
		restart()
		r.lost(Object{Kind: kind}, err, "those that would take port "+strconv.Itoa(defaultPort)+", or run one of the "+
			"programs, are not known")
	}
}

func (r *reader) workload(ctx context.Context, w *workload, spec *corev1.PodSpec) {
	var container *corev1.Container
	w.program, container = programOf(spec)
	w.takesPort = takesPort(spec)
	w.bypass = bypassOf(w.name, spec)
	w.placement(spec)
	if w.program == "" && !w.takesPort && !w.selectsEdge && w.bypass == nil {
		return
	}
	if container != nil {
		w.image = container.Image
	}
	switch w.program {
	case kubeProxyProgram:
		config := r.cluster.documents.proxyConfigOf(ctx, w.namespace, spec, container)
		w.proxy = &config
	case calicoProgram:
		w.env = map[string]string{}
		for _, variable := range container.Env {
			w.env[variable.Name] = variable.Value
		}
	case wrapperProgram:
		w.hub, _ = flagOf(commandLine(container), "hub")
	case controllerProgram:
		r.carry(w.namespace, spec)
		if w.ready < w.desired {
			w.problem = r.problem(ctx, w)
		}
	default:
	}
	r.cluster.workloads = append(r.cluster.workloads, w)
}

// problem is what is wrong with the first pod of a workload that is not ready; nothing if that is not known.
func (r *reader) problem(ctx context.Context, w *workload) string {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	list := &corev1.PodList{}
	if err != nil || r.API.List(ctx, list, client.InNamespace(w.namespace),
		client.MatchingLabelsSelector{Selector: selector}, client.Limit(pages.Size)) != nil {
		return "" // that pods are missing is said all the same
	}
	return gridview.FirstPodProblem(list.Items, "", "")
}

// services reads the Services that have topologyKeys, and the pods of CoreDNS.
func (r *reader) services(ctx context.Context) {
	c := r.cluster
	list := pages.Metadata(corev1.SchemeGroupVersion.WithKind(kindService))
	restart := func() { c.services, c.governed, c.gridCounts[kindService] = nil, nil, 0 }
	err := pages.Each(ctx, r.API, list, pages.To(restart, func(object *metav1.PartialObjectMetadata) {
		keys, annotation, err := topology.KeysOf(object.Annotations)
		if annotation != "" {
			c.gridCounts[kindService]++
		}
		switch {
		case err != nil:
			c.services = append(c.services, grid{named(kindService, object.Namespace, object.Name), fmt.Sprintf(
				"its annotation %s does not parse, so no node sees its endpoints: %v", annotation, err)})
		case object.Namespace == system && object.Name == "kube-dns":
			c.resolverKeys = keys
		case keys.Governed():
			c.governed = append(c.governed, keys)
		}
	}))
	if err != nil {
		restart()
		r.lost(Object{Kind: kindService}, err, "the sites, and whose topologyKeys do not parse, is not known")
		return
	}
	if len(c.governed) == 0 {
		return // there are no sites that would need names
	}
	resolvers := map[string]bool{}
	restart = func() { clear(resolvers) }
	err = pages.Each(ctx, r.API, &corev1.PodList{}, pages.To(restart, func(p *corev1.Pod) {
		if p.DeletionTimestamp == nil && gridview.IsReady(p) {
			resolvers[p.Spec.NodeName] = true
		}
	}), client.InNamespace(system), client.MatchingLabels{"k8s-app": "kube-dns"})
	if err == nil && len(resolvers) > 0 { // other resolvers than CoreDNS are not known here
		c.resolvers = resolvers
	}
}

// surroundings reads the few objects that say how the cluster was made.
func (r *reader) surroundings(ctx context.Context) {
	c := r.cluster
	switch doc := c.documents.get(ctx, kindConfigMap, system, "kubeadm-config"); {
	case doc.err == nil:
		c.kubeadm = true
	case !apierrors.IsNotFound(doc.err):
		r.lost(doc.about, doc.err, "whether kubeadm made this cluster is not known for sure")
	}
	if len(c.running(ciliumProgram)) > 0 {
		switch doc := c.documents.get(ctx, kindConfigMap, system, "cilium-config"); {
		case doc.err == nil:
			c.ciliumGlobal = doc.data[apiServerURLs]
		case !apierrors.IsNotFound(doc.err):
			r.lost(doc.about, doc.err, "whom the agents of Cilium ask is not known")
		}
	}
	if len(c.running(calicoProgram)) > 0 {
		felix := &unstructured.Unstructured{}
		felix.SetGroupVersionKind(felixKind)
		err := r.API.Get(ctx, client.ObjectKey{Name: "default"}, felix)
		if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			r.lost(Object{Kind: kindFelix, Name: "default"}, err,
				"whether Calico takes kube-proxy's place is not known")
		}
		if enabled, found, _ := unstructured.NestedBool(felix.Object, "spec", "bpfEnabled"); found {
			c.felixBPF = strconv.FormatBool(enabled)
		}
	}
	there := func(kind schema.GroupVersionKind, name, consequence string) bool {
		object := &metav1.PartialObjectMetadata{}
		object.SetGroupVersionKind(kind)
		err := r.API.Get(ctx, client.ObjectKey{Name: name}, object)
		if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
			r.lost(Object{Kind: kind.Kind, Name: name}, err, consequence)
		}
		return err == nil
	}
	const consequence = "whether an upgrade by kubeadm keeps off edge nodes is not known"
	c.policy = there(policyKind, policyName, consequence) &&
		there(policyKind.GroupVersion().WithKind(kindPolicy+"Binding"), policyName, consequence)
	lease := &unstructured.Unstructured{}
	lease.SetGroupVersionKind(leaseKind)
	if r.API.Get(ctx, client.ObjectKey{Namespace: system, Name: string(controllerProgram)}, lease) == nil {
		text, _, _ := unstructured.NestedString(lease.Object, "spec", "renewTime")
		renewed, err := time.Parse(time.RFC3339, text)
		c.leads = err == nil && r.Now.Sub(renewed) < leaseOver
	}
	c.hubAPI = there(apiKind, hubAPIName, "whether a hub is installed is not known")
}

// grids reads the grids' definitions, the grids that are not well, and Services whose annotation does not parse.
func (r *reader) grids(ctx context.Context) {
	c := r.cluster
	for _, kind := range v1.Kinds {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(crdKind)
		d := definition{name: kind.Plural + "." + v1.GroupName}
		err := r.API.Get(ctx, client.ObjectKey{Name: d.name}, crd)
		if err != nil && !apierrors.IsNotFound(err) {
			r.lost(Object{Kind: kindCRD, Name: d.name}, err, "its version is not known, nor the state of such grids")
			c.missing[kind.Kind] = true
			continue
		}
		if d.found = err == nil; d.found {
			// What is no number is none of ours, like what is not there.
			d.version, _ = strconv.Atoi(crd.GetAnnotations()[v1.AnnotationCRDVersion])
			d.established = hasCondition(crd, "Established")
		}
		c.definitions = append(c.definitions, d)
		if !d.found {
			continue
		}
		before := len(c.grids)
		restart := func() { c.grids, c.gridCounts[kind.Kind] = c.grids[:before], 0 }
		err = pages.Each(ctx, r.API, kind.NewList(), pages.To(restart, func(object v1.Object) {
			c.gridCounts[kind.Kind]++
			if spec, _ := v1.Workload(object); spec != nil {
				c.gridKeys = append(c.gridKeys, spec.GridUniqKey)
			}
			if message := gridTrouble(object); message != "" {
				c.grids = append(c.grids, grid{named(kind.Kind, object.GetNamespace(), object.GetName()), message})
			}
		}))
		if err != nil {
			r.lost(Object{Kind: kind.Kind}, err, "their state is not known")
		}
	}
}

func hasCondition(object *unstructured.Unstructured, name string) bool {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(entry any) bool {
		condition, _ := entry.(map[string]any)
		return condition["type"] == name && condition["status"] == "True"
	})
}

// gridTrouble is what a grid's conditions say, if they say that it is stalled or degraded.
func gridTrouble(object v1.Object) string {
	var conditions []metav1.Condition
	if g, ok := object.(*v1.ServiceGrid); ok {
		conditions = g.Status.Conditions
	} else {
		_, status := v1.Workload(object)
		conditions = status.Conditions
	}
	var trouble []string
	for _, name := range []string{v1.ConditionStalled, v1.ConditionDegraded} {
		if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
			trouble = append(trouble, fmt.Sprintf("%s (%s): %s", name, c.Reason, c.Message))
		}
	}
	if meta.FindStatusCondition(conditions, v1.ConditionReady) == nil {
		trouble = append(trouble, "the controller has not told of it")
	}
	return strings.Join(trouble, "; ")
}

// credentials reads the ConfigMaps and Secrets that the programs' pods have.
func (r *reader) credentials(ctx context.Context) {
	for about := range r.cluster.carries {
		doc := r.cluster.documents.get(ctx, about.Kind, about.Namespace, about.Name)
		if doc.err != nil && !apierrors.IsNotFound(doc.err) {
			r.lost(about, doc.err, "when the credentials in it end is not known")
		}
	}
	root := r.cluster.documents.get(ctx, kindConfigMap, system, "kube-root-ca.crt")
	if root.err == nil {
		r.cluster.carries[root.about] = true
	}
}

// right is something that whoever installs has to be allowed.
type right struct {
	verb, group, resource, namespace, name string
	allowed                                bool
	reason                                 string
}

func (r *right) String() string {
	text := r.verb + " " + r.resource
	if r.group != "" {
		text += "." + r.group
	}
	if r.name != "" {
		text = r.verb + " " + path.Join(r.resource, r.name)
	}
	if r.namespace != "" {
		text += " in " + r.namespace
	}
	return text
}

// rights asks what the user may do of what installing takes.
func (r *reader) rights(ctx context.Context, wanted []right) {
	for _, right := range wanted {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb:      right.verb,
				Group:     right.group,
				Resource:  right.resource,
				Namespace: right.namespace,
				Name:      right.name,
			},
		}}
		if err := r.API.Create(ctx, review); err != nil {
			r.lost(Object{Kind: "SelfSubjectAccessReview"}, err, "what you may do is not known")
			return
		}
		right.allowed, right.reason = review.Status.Allowed, review.Status.Reason
		r.cluster.rights = append(r.cluster.rights, right)
	}
}
