package lite

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"
)

// tokenRequest is a request for a token of a pod, as the kubelet makes it for a volume
// (pkg/volume/projected/projected.go of Kubernetes).
type tokenRequest struct {
	Namespace, ServiceAccount string
	Pod                       string
	PodUID                    types.UID
	// Audience is "" for the API server's own.
	Audience          string
	ExpirationSeconds int64
}

// defaultExpiration is the default of ExpirationSeconds.
const defaultExpiration = 3600

const (
	// podsBytes is about how many bytes of memory may be taken by what the node's pods name. A pod may name thousands
	// of objects, and the unit's MemoryMax ends a process that follows them all.
	podsBytes = 64 << 20
	// namedBytes is about how many bytes it takes to follow an object, besides the object, or to keep a token.
	namedBytes = 32 << 10
	// heavyPause is the time until what was too large is tried again.
	heavyPause = 15 * time.Minute
)

// needs are the scopes and tokenRequests that pods, or accounts, need. They are true if a pod does not start without
// them.
type needs map[any]bool

// needsOf returns the needs of a pod: the objects that it, its claims' volumes and the drivers of these name, and of
// its ConfigMaps and Secrets the keys without which it does not start. A pod that has ended has none, because it does
// not start again. Of needs that take more than podsBytes not all are returned.
func (s *Store) needsOf(pod *corev1.Pod) (of needs, keys map[scope][]string) {
	of, keys = needs{}, map[scope][]string{}
	if !hasEnded(pod) {
		referrer{of, keys, s, pod}.add()
	}
	return of, keys
}

// candidate is what is kept as a whole or not at all: what a pod names, or a scope that an account reads.
type candidate struct {
	needs

	// id is the pod's UID, or the scope.
	id any
	// budgets have the bytes that are left for it and others.
	budgets []*int
}

// leftOut is about a candidate that was too large.
type leftOut struct {
	// size is its size in bytes then, because once it is no longer kept, its size is not known. It may be smaller after
	// the time again.
	size  int
	again time.Time
}

// podCandidates returns the candidates that pods name.
func (s *Store) podCandidates(pods []*corev1.Pod) (all []candidate) {
	left := new(podsBytes)
	for _, pod := range pods {
		of, _ := s.needsOf(pod)
		all = append(all, candidate{of, pod.UID, []*int{left}})
	}
	return all
}

// selectWithinBudgets adds candidates to all that is kept, the smallest first, as long as their budgets last. It
// returns the others, with their sizes in bytes.
func (s *Store) selectWithinBudgets(all needs, candidates []candidate) (left map[any]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, sizes := time.Now(), map[any]int{}
	maps.DeleteFunc(s.heavy, func(_ any, heavy leftOut) bool { return !now.Before(heavy.again) })
	size := func(of candidate) int { return max(s.extraBytes(all, of.needs), s.heavy[of.id].size) }
	for _, of := range candidates {
		sizes[of.id] = size(of)
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(sizes[a.id], sizes[b.id]) })
	left = map[any]int{}
	for _, of := range candidates {
		bytes := size(of)
		if slices.ContainsFunc(of.budgets, func(b *int) bool { return *b < bytes }) {
			left[of.id] = sizes[of.id]
			if _, known := s.heavy[of.id]; !known {
				s.heavy[of.id] = leftOut{sizes[of.id], now.Add(heavyPause)}
			}
			continue
		}
		for _, budget := range of.budgets {
			*budget -= bytes
		}
		delete(s.heavy, of.id)
		for id, required := range of.needs {
			all[id] = all[id] || required
		}
	}
	return left
}

// extraBytes returns how many bytes needs take that are not among all. The caller holds the lock.
func (s *Store) extraBytes(all, of needs) (bytes int) {
	for id := range of {
		if _, there := all[id]; there {
			continue
		}
		bytes += namedBytes
		if in, ok := id.(scope); ok && s.sets[in] != nil {
			bytes += s.sets[in].size()
		}
	}
	return bytes
}

// hasEnded reports whether a pod has ended for good.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// claimOf returns the name of a volume's claim; "" if it has none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	default:
		return ""
	}
}

// referrer adds the needs of one pod.
type referrer struct {
	needs

	keys  map[scope][]string
	store *Store
	pod   *corev1.Pod
}

func (r referrer) add() {
	for _, s := range r.pod.Spec.ImagePullSecrets {
		r.addObject(secrets, s.Name, new(true))
	}
	for i := range r.pod.Spec.Volumes {
		r.volume(&r.pod.Spec.Volumes[i])
	}
	for _, c := range containersOf(r.pod) {
		for _, from := range c.EnvFrom {
			secret := ptr.Deref(from.SecretRef, corev1.SecretEnvSource{})
			config := ptr.Deref(from.ConfigMapRef, corev1.ConfigMapEnvSource{})
			r.addObject(secrets, secret.Name, secret.Optional)
			r.addObject(configMaps, config.Name, config.Optional)
		}
		for _, variable := range c.Env {
			from := ptr.Deref(variable.ValueFrom, corev1.EnvVarSource{})
			secret := ptr.Deref(from.SecretKeyRef, corev1.SecretKeySelector{})
			config := ptr.Deref(from.ConfigMapKeyRef, corev1.ConfigMapKeySelector{})
			r.addObject(secrets, secret.Name, secret.Optional, secret.Key)
			r.addObject(configMaps, config.Name, config.Optional, config.Key)
		}
	}
	for _, claim := range r.pod.Spec.ResourceClaims {
		r.addRequired(resourceClaims, ptr.Deref(claim.ResourceClaimName, ""))
	}
	for _, made := range r.pod.Status.ResourceClaimStatuses { // these are made from templates
		r.addRequired(resourceClaims, ptr.Deref(made.ResourceClaimName, ""))
	}
	made := ptr.Deref(r.pod.Status.ExtendedResourceClaimStatus, corev1.PodExtendedResourceClaimStatus{})
	r.addRequired(resourceClaims, made.ResourceClaimName)
}

func (r referrer) addRequired(k *kind, name string) { r.addObject(k, name, nil) }

// addObject adds an object and the keys that it must have, unless the name is empty. If optional is true, the pod
// starts without them.
func (r referrer) addObject(k *kind, name string, optional *bool, keys ...string) {
	if name == "" {
		return
	}
	in, required := objectScope(k, r.pod.Namespace, name), !ptr.Deref(optional, false)
	if r.need(in, required); required && len(keys) > 0 {
		r.keys[in] = append(r.keys[in], keys...)
	}
}

// keysOf returns the keys that a volume selects.
func keysOf(items []corev1.KeyToPath) (keys []string) {
	for _, item := range items {
		keys = append(keys, item.Key)
	}
	return keys
}

// need adds a need, unless the needs are left out in any case.
func (r referrer) need(id any, required bool) {
	if _, there := r.needs[id]; there || len(r.needs)*namedBytes <= podsBytes {
		r.needs[id] = r.needs[id] || required
	}
}

func (r referrer) secret(ref *corev1.LocalObjectReference) {
	r.addRequired(secrets, ptr.Deref(ref, corev1.LocalObjectReference{}).Name)
}

// volume adds the needs of a volume, which has one source.
func (r referrer) volume(v *corev1.Volume) {
	if claim := claimOf(r.pod, v); claim != "" {
		r.claim(claim)
	}
	switch {
	case v.Secret != nil:
		r.addObject(secrets, v.Secret.SecretName, v.Secret.Optional, keysOf(v.Secret.Items)...)
	case v.ConfigMap != nil:
		r.addObject(configMaps, v.ConfigMap.Name, v.ConfigMap.Optional, keysOf(v.ConfigMap.Items)...)
	case v.Projected != nil:
		for _, from := range v.Projected.Sources {
			secret := ptr.Deref(from.Secret, corev1.SecretProjection{})
			config := ptr.Deref(from.ConfigMap, corev1.ConfigMapProjection{})
			r.addObject(secrets, secret.Name, secret.Optional, keysOf(secret.Items)...)
			r.addObject(configMaps, config.Name, config.Optional, keysOf(config.Items)...)
			if token := from.ServiceAccountToken; token != nil {
				r.token(token.Audience, token.ExpirationSeconds)
			}
		}
	case v.CSI != nil:
		r.driver(v.CSI.Driver)
		r.secret(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		r.addRequired(secrets, v.AzureFile.SecretName)
	case v.CephFS != nil:
		r.secret(v.CephFS.SecretRef)
	case v.FlexVolume != nil:
		r.secret(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		r.secret(v.RBD.SecretRef)
	case v.ISCSI != nil:
		r.secret(v.ISCSI.SecretRef)
	}
}

func (r referrer) token(audience string, seconds *int64) {
	r.need(tokenRequest{
		Namespace: r.pod.Namespace, ServiceAccount: cmp.Or(r.pod.Spec.ServiceAccountName, "default"),
		Pod: r.pod.Name, PodUID: r.pod.UID, Audience: audience,
		ExpirationSeconds: ptr.Deref(seconds, defaultExpiration),
	}, true)
}

// claim adds a claim, and the needs of its volume. The Node authorizer of Kubernetes lets a node read the volume's
// Secrets.
func (r referrer) claim(name string) {
	r.addRequired(claims, name)
	claim, volume := r.store.volumeOf(types.NamespacedName{Namespace: r.pod.Namespace, Name: name})
	if claim.Spec.VolumeName == "" {
		return
	}
	r.need(objectScope(volumes, "", claim.Spec.VolumeName), true)
	csi := ptr.Deref(volume.Spec.CSI, corev1.CSIPersistentVolumeSource{})
	flex := ptr.Deref(volume.Spec.FlexVolume, corev1.FlexPersistentVolumeSource{})
	share := ptr.Deref(volume.Spec.AzureFile, corev1.AzureFilePersistentVolumeSource{})
	for _, ref := range []*corev1.SecretReference{
		csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.NodeExpandSecretRef, flex.SecretRef,
		{Name: share.SecretName, Namespace: ptr.Deref(share.SecretNamespace, r.pod.Namespace)},
	} {
		if ref != nil && ref.Name != "" {
			r.need(objectScope(secrets, ref.Namespace, ref.Name), true)
		}
	}
	r.driver(csi.Driver)
}

// driver adds the tokens that a CSI driver requests for a pod (pkg/volume/csi/csi_mounter.go of Kubernetes).
func (r referrer) driver(name string) {
	driver := &storagev1.CSIDriver{}
	r.store.decode(csiDrivers, types.NamespacedName{Name: name}, driver)
	for _, request := range driver.Spec.TokenRequests {
		r.token(request.Audience, request.ExpirationSeconds)
	}
}
