package lite

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// ExplainPath is the path at which the node's own kubelet, or root with its certificate, gets an Explanation as JSON.
const ExplainPath = "/lite-apiserver/explain"

// Explanation says which of the node's pods would start now without kube-apiserver.
type Explanation struct {
	Node string `json:"node"`
	// Missing is why no pod of the API would start; empty if that depends on the pod.
	Missing []string `json:"missing,omitempty"`
	// Unsaved is why no pod of the API would start after a restart now: the sets that have never been on the disk.
	Unsaved []string `json:"unsaved,omitempty"`
	// NotOnDisk describes how many changes are only in memory, since when, and why; "" if none are.
	NotOnDisk string           `json:"notOnDisk,omitempty"`
	Pods      []PodExplanation `json:"pods"`
}

// PodExplanation is about one pod.
type PodExplanation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Missing is why the pod would not start; empty if it would.
	Missing []string `json:"missing,omitempty"`
}

// updateExplanation finds out which pods would start now. It leaves out static pods, because the kubelet has them from
// files, and pods that have ended, except those that a shutdown of the node has ended.
func (s *Server) updateExplanation() *Explanation {
	e := &Explanation{Node: s.store.node, NotOnDisk: s.notOnDisk(), Pods: []PodExplanation{}}
	s.store.mu.Lock()
	for _, in := range nodeScopes(s.store.node) {
		if set := s.store.getOrAddSet(in); set.version == 0 {
			e.Missing = append(e.Missing, in.kind.Resource+" are not known yet")
		} else if !set.saved {
			e.Unsaved = append(e.Unsaved, in.kind.Resource+" are not on the disk yet")
		}
	}
	s.store.mu.Unlock()
	pods, err := s.store.pods()
	for _, err := range []error{s.checkAge(), CheckCertificate(s.config.Kubeconfig, s.store.now(), s.clientCAs.Load()),
		err} {
		if err != nil {
			e.Missing = append(e.Missing, err.Error())
		}
	}
	ofTokens, node := readImagesOfTokens(recordsDir), s.store.nodeObject()
	left := s.store.selectWithinBudgets(needs{}, s.store.podCandidates(pods))
	for _, pod := range pods {
		_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
		if mirror || (hasEnded(pod) && !isShutDown(pod)) {
			continue
		}
		of := start{store: s.store, pod: pod, node: node, ofTokens: ofTokens}
		if bytes, out := left[pod.UID]; out {
			of.add("what it names takes %.1f MiB or more, and is not kept: of what the node's pods name, %d MiB are "+
				"kept, those of the smallest first", float64(bytes)/(1<<20), podsBytes>>20)
		} else {
			of.explain()
		}
		slices.Sort(of.missing)
		e.Pods = append(e.Pods, PodExplanation{pod.Namespace, pod.Name, slices.Compact(of.missing)})
	}
	s.explained.Store(e)
	return e
}

// isUnsaved reports whether one of these keys is only in memory, so that the next start would not find it.
func (s *Store) isUnsaved(keys ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(keys, func(key string) bool { return s.pending[key] != nil })
}

const unsaved = "%s is not on the disk yet: a restart now would not find it"

// explain adds why the pod would not start now.
func (s *start) explain() {
	name := types.NamespacedName{Namespace: s.pod.Namespace, Name: s.pod.Name}
	if s.store.isUnsaved(objectKey(podScope(s.store.node), name)) {
		s.add(unsaved, "the pod")
	}
	needed, keys := s.store.needsOf(s.pod)
	for id, required := range needed {
		if request, ok := id.(tokenRequest); ok {
			s.checkToken(request)
			continue
		}
		in, _ := id.(scope)
		what := in.kind.Kind + " " + in.objectName()
		name := types.NamespacedName{Namespace: in.namespace, Name: in.objectName()}
		switch _, objects, ok := s.store.readScope(in); {
		case !ok:
			s.add("%s is not known", what)
		case required && len(objects) == 0:
			s.add("%s does not exist", what)
		case s.store.isUnsaved(in.key(keySet), objectKey(in, name)):
			s.add(unsaved, what)
		case len(objects) > 0:
			s.checkKeys(in, objects[0], keys[in])
		}
	}
	class := types.NamespacedName{Name: ptr.Deref(s.pod.Spec.RuntimeClassName, "")}
	if class.Name != "" && s.store.findObject(class, runtimeClasses) == nil {
		s.add("RuntimeClass %s is not known", class.Name)
	}
	for i := range s.pod.Spec.Volumes {
		s.checkVolume(&s.pod.Spec.Volumes[i])
	}
	s.checkState()
	s.checkImages()
	s.checkClock()
	s.checkProjections()
	s.checkPlacement()
	s.checkDevices()
}

// checkKeys adds the keys that containers or volumes name, and that a ConfigMap or Secret does not have. A pod that
// runs does not notice that one is removed (makeEnvironmentVariables of pkg/kubelet, MakePayload of
// pkg/volume/configmap and secret).
func (s *start) checkKeys(in scope, of *wire.Object, keys []string) {
	var config corev1.ConfigMap
	var secret corev1.Secret
	var err error
	switch {
	case len(keys) == 0:
		return
	case in.kind == secrets:
		err = secret.Unmarshal(encoded(of))
	default:
		err = config.Unmarshal(encoded(of))
	}
	if err != nil {
		s.add("%s %s cannot be read: %s", in.kind.Kind, of.Name, err)
		return
	}
	for _, key := range keys {
		_, text := config.Data[key]
		_, bytes := config.BinaryData[key]
		if _, ok := secret.Data[key]; !text && !bytes && !ok {
			s.add("%s %s has no key %s", in.kind.Kind, of.Name, key)
		}
	}
}

// checkToken adds why the pod would not get a token.
func (s *start) checkToken(request tokenRequest) {
	whose := "for the audience " + request.Audience
	if request.Audience == "" {
		whose = "for the API server"
	}
	switch kept, ok := s.store.token(request); {
	case !ok:
		s.add("it has no token %s", whose)
	case kept.hasExpired(s.store.now()):
		s.add("the token %s has expired at %s", whose, kept.Until.UTC().Format(time.RFC3339))
	case s.store.isUnsaved(tokenKey(request)):
		s.add(unsaved, "the token "+whose)
	}
}

// isAttached reports whether the control plane has to attach a volume, or the PersistentVolume of its claim, to the
// node before the pod starts (pkg/volume/util/operationexecutor of Kubernetes).
func (s *Store) isAttached(v *corev1.Volume, bound *corev1.PersistentVolumeSource) bool {
	return v.FC != nil || v.ISCSI != nil || v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil ||
		v.AzureDisk != nil || v.Cinder != nil || v.VsphereVolume != nil ||
		bound.FC != nil || bound.ISCSI != nil || bound.GCEPersistentDisk != nil || bound.AWSElasticBlockStore != nil ||
		bound.AzureDisk != nil || bound.Cinder != nil || bound.VsphereVolume != nil ||
		bound.CSI != nil && s.attaches(bound.CSI.Driver)
}

// checkVolume is about a volume that has to be attached, or whose claim a kubelet refuses (createVolumeSpec of
// pkg/kubelet/volumemanager/populator, and checkNodeAffinity of pkg/volume/util/operationexecutor). It leaves a claim
// or a PersistentVolume that is not known to explain.
func (s *start) checkVolume(v *corev1.Volume) {
	name := claimOf(s.pod, v)
	claim, bound := s.store.volumeOf(types.NamespacedName{Namespace: s.pod.Namespace, Name: name})
	if s.store.isAttached(v, &bound.Spec.PersistentVolumeSource) {
		s.add("volume %s has to be attached by the control plane", v.Name)
	}
	mode, why := ptr.Deref(bound.Spec.VolumeMode, corev1.PersistentVolumeFilesystem), ""
	from := ptr.Deref(bound.Spec.NodeAffinity, corev1.VolumeNodeAffinity{}).Required
	switch {
	case claim.Name == "":
	case claim.DeletionTimestamp != nil:
		why = "is being deleted"
	case claim.Status.Phase != corev1.ClaimBound:
		why = fmt.Sprintf("is not bound to a volume, but %s", cmp.Or(claim.Status.Phase, corev1.ClaimPending))
	case claim.Spec.VolumeName == "":
		why = "is bound, but names no volume"
	case v.Ephemeral != nil && ephemeral.VolumeIsForPod(s.pod, &claim) != nil:
		why = "was not created for this pod"
	case bound.Name == "":
	case ptr.Deref(bound.Spec.ClaimRef, corev1.ObjectReference{}).UID != claim.UID:
		why = "names PersistentVolume " + bound.Name + ", which is bound to another claim"
	case from != nil && s.node.Name != "" && !reaches(from, s.node):
		why = "names PersistentVolume " + bound.Name + ", whose node affinity does not match the Node's labels"
	case !fits(mode, s.pod, v.Name):
		why = fmt.Sprintf("names PersistentVolume %s, whose volumeMode %s does not fit the containers' volumeMounts "+
			"or volumeDevices", bound.Name, mode)
	}
	if why != "" {
		s.add("PersistentVolumeClaim %s %s", name, why)
	}
}

// attaches reports whether the volumes of a CSI driver have to be attached. If it is not known, they may have to be.
func (s *Store) attaches(name string) bool {
	driver := &storagev1.CSIDriver{}
	known := s.decode(csiDrivers, types.NamespacedName{Name: name}, driver)
	return !known || ptr.Deref(driver.Spec.AttachRequired, true)
}

// reaches reports whether a volume may be used from a node, by the node's labels. (component-helpers/storage/volume has
// it too, but would make the program a third larger.)
func reaches(from *corev1.NodeSelector, node *corev1.Node) bool {
	labels := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node.Labels}}
	matches, err := helpers.MatchNodeSelectorTerms(labels, from)
	return matches && err == nil
}

// fits reports whether the containers of a pod use a volume as its mode allows: they mount a file system, and a block
// device is a device of theirs.
func fits(mode corev1.PersistentVolumeMode, pod *corev1.Pod, volume string) bool {
	containers := containersOf(pod)
	for _, c := range pod.Spec.EphemeralContainers { // the kubelet counts them
		containers = append(containers, corev1.Container(c.EphemeralContainerCommon))
	}
	return !slices.ContainsFunc(containers, func(c corev1.Container) bool {
		mounts := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
		devices := slices.ContainsFunc(c.VolumeDevices, func(d corev1.VolumeDevice) bool { return d.Name == volume })
		return mounts && mode != corev1.PersistentVolumeFilesystem || devices && mode != corev1.PersistentVolumeBlock
	})
}

// volumeOf returns a claim and the volume that it names, empty ones if they are not known.
func (s *Store) volumeOf(name types.NamespacedName) (claim corev1.PersistentVolumeClaim, v corev1.PersistentVolume) {
	if s.decode(claims, name, &claim) {
		s.decode(volumes, types.NamespacedName{Name: claim.Spec.VolumeName}, &v)
	}
	return claim, v
}

// decode reads an object, and reports whether it is known.
func (s *Store) decode(k *kind, name types.NamespacedName, into served.Typed) bool {
	o := s.findObject(name, k)
	return o != nil && into.Unmarshal(encoded(o)) == nil
}

// nodeObject returns the node's Node; an empty one if it is not known.
func (s *Store) nodeObject() *corev1.Node {
	node := &corev1.Node{}
	s.decode(nodes, types.NamespacedName{Name: s.node}, node)
	return node
}

// pods returns the node's pods without those that are gone. The error is about a pod that cannot be decoded; the others
// are in the result.
func (s *Store) pods() ([]*corev1.Pod, error) {
	_, objects, _ := s.readScope(podScope(s.node))
	var all []*corev1.Pod
	var failed error
	for _, o := range objects {
		pod := &corev1.Pod{}
		if err := pod.Unmarshal(encoded(o)); err != nil {
			failed = fmt.Errorf("pod %s: %w", o.Key(), err)
			continue
		}
		all = append(all, pod)
	}
	return all, failed
}

// Stuck returns the pods that would not start.
func (e *Explanation) Stuck() []PodExplanation {
	if len(e.Nothing()) > 0 {
		return e.Pods
	}
	return slices.DeleteFunc(slices.Clone(e.Pods), func(p PodExplanation) bool { return len(p.Missing) == 0 })
}

// Nothing returns why no pod would start; empty if that depends on the pod.
func (e *Explanation) Nothing() []string { return slices.Concat(e.Missing, e.Unsaved) }

// Summary returns the explanation as one line.
func (e *Explanation) Summary() string {
	if why := e.Nothing(); len(why) > 0 {
		return "without kube-apiserver no pod would start: " + strings.Join(why, "; ")
	}
	stuck := e.Stuck()
	if len(stuck) == 0 {
		return fmt.Sprintf("without kube-apiserver all %d pods would start", len(e.Pods))
	}
	const named = 3
	var lines []string
	for _, p := range stuck[:min(named, len(stuck))] {
		lines = append(lines, fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, strings.Join(p.Missing, ", ")))
	}
	if len(stuck) > named {
		lines = append(lines, fmt.Sprintf("and %d more", len(stuck)-named))
	}
	return fmt.Sprintf("without kube-apiserver %d of %d pods would not start: %s", len(stuck), len(e.Pods),
		strings.Join(lines, "; "))
}
