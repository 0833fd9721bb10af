package lite

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// objects have one object for each scope; nil if it was deleted.
type objects map[scope]interface{ Marshal() ([]byte, error) }

// kept is a Store with these objects, and complete sets of all that a node always needs.
func kept(all objects) *Store {
	s := newStore("node0")
	for _, in := range nodeScopes("node0") {
		sink{s, in}.ChangeAt("1", func() {})
	}
	for in, object := range all {
		to := sink{s, in}
		to.ChangeAt("2", func() {
			if object != nil {
				to.Apply(wiretest.Object(object))
			}
		})
	}
	s.noteSaved(s.selectPending(hourlyBytes)) // it is on the disk
	return s
}

// claimed is a claim whose volume is of a driver, and drivers.
func claimed(source *corev1.CSIPersistentVolumeSource) objects {
	return objects{
		objectScope(claims, "shop", "disk"): &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "disk", UID: "1", ResourceVersion: "2"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "volume"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}},
		objectScope(volumes, "", "volume"): &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "volume", ResourceVersion: "2"},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{UID: "1"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: source}}},
		{kind: csiDrivers}: &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "local.csi", ResourceVersion: "2"},
			Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}},
	}
}

// lack is a pod, what is kept, and what is said to be missing.
type lack struct {
	change func(*corev1.Pod)
	kept   objects
	want   string
}

// lacks is a table of what may keep a pod from starting alone.
func lacks() map[string]lack {
	volume := func(source corev1.VolumeSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}} }
	}
	projected := func(p corev1.VolumeProjection) func(*corev1.Pod) {
		sources := []corev1.VolumeProjection{p}
		return volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}})
	}
	disk := volume(corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}})
	devices := func(name corev1.ResourceName) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: quantity.MustParse("1")}
		}
	}
	affinity := func(zone string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}}}}}
		}
	}
	edge := objects{objectScope(nodes, "", "node0"): &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node0", ResourceVersion: "2", Labels: map[string]string{"zone": "west"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "own", Value: "till", Effect: corev1.TaintEffectNoExecute},
			{Key: "own", Value: "all", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"example.com/gpu": quantity.MustParse("1"),
			corev1.ResourceMemory: quantity.MustParse("1")}}}}
	unknownVolume := claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"})
	delete(unknownVolume, objectScope(volumes, "", "volume"))
	changed := func(change func(*corev1.PersistentVolumeClaim)) objects {
		local := claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"})
		change(local[objectScope(claims, "shop", "disk")].(*corev1.PersistentVolumeClaim))
		return local
	}
	unbound := claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"})
	unbound[objectScope(volumes, "", "volume")].(*corev1.PersistentVolume).Spec.ClaimRef = nil
	ephemeral := func(owner types.UID) (func(*corev1.Pod), objects) {
		local := changed(func(c *corev1.PersistentVolumeClaim) {
			c.Name = "till-v"
			c.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: ptr.To(true)}}
		})
		local[objectScope(claims, "shop", "till-v")] = local[objectScope(claims, "shop", "disk")]
		delete(local, objectScope(claims, "shop", "disk"))
		return volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), local
	}
	block := claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"})
	block[objectScope(volumes, "", "volume")].(*corev1.PersistentVolume).Spec.VolumeMode =
		ptr.To(corev1.PersistentVolumeBlock)
	local := func(zone string) objects {
		kept := claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"})
		volume := kept[objectScope(volumes, "", "volume")].(*corev1.PersistentVolume)
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{
			Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}}}}}
		kept[objectScope(nodes, "", "node0")] = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node0",
			ResourceVersion: "2", Labels: map[string]string{"zone": "west"}}}
		return kept
	}
	mounted := func(p *corev1.Pod) {
		disk(p)
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	device := func(p *corev1.Pod) {
		disk(p)
		debug := corev1.EphemeralContainer{}
		debug.VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{debug}
	}
	own, ownClaim := ephemeral("till")
	_, foreignClaim := ephemeral("other")
	waits := func(reason string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: reason}
		}
	}
	return map[string]lack{
		"nothing": {func(*corev1.Pod) {}, nil, ""},
		"image always pulled": {func(p *corev1.Pod) { p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways }, nil,
			"Always"},
		"never ran": {func(p *corev1.Pod) { p.Status.ContainerStatuses = nil }, nil, "no container has run with it"},
		"clock behind": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{
				StartedAt: metav1.NewTime(time.Now().Add(time.Hour))}
		}, nil, "which is still to come"},
		"its init never ran": {func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i"}} }, nil,
			"container i"},
		"Secret": {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}), nil,
			"Secret s is not"},
		"claim":  {disk, nil, "PersistentVolumeClaim disk is not"},
		"volume": {disk, unknownVolume, "PersistentVolume volume is not known"},
		"claim that is deleted": {disk, changed(func(c *corev1.PersistentVolumeClaim) {
			c.DeletionTimestamp = ptr.To(metav1.Now())
		}), "PersistentVolumeClaim disk is being deleted"},
		"claim without its volume": {disk, changed(func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimLost
		}), "PersistentVolumeClaim disk is not bound to a volume, but Lost"},
		"new claim": {disk, changed(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = "" }),
			"PersistentVolumeClaim disk is not bound to a volume, but Pending"},
		"bound claim without a volume": {disk, changed(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName = ""
		}), "PersistentVolumeClaim disk is bound, but names no volume"},
		"claim that was created again": {disk, changed(func(c *corev1.PersistentVolumeClaim) { c.UID = "2" }),
			"PersistentVolumeClaim disk names PersistentVolume volume, which is bound to another claim"},
		"volume without a claim": {disk, unbound,
			"PersistentVolumeClaim disk names PersistentVolume volume, which is bound to another claim"},
		"volume of this zone": {disk, local("west"), ""},
		"volume of another zone": {disk, local("east"), "PersistentVolumeClaim disk names PersistentVolume volume, " +
			"whose node affinity does not match"},
		"mounted file system": {mounted, claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"}), ""},
		"block device":        {device, block, ""},
		"mounted block device": {mounted, block, "PersistentVolumeClaim disk names PersistentVolume volume, whose " +
			"volumeMode Block does not fit"},
		"file system as a device": {device, claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"}),
			"PersistentVolumeClaim disk names PersistentVolume volume, whose volumeMode Filesystem does not fit"},
		"claim of its own": {own, ownClaim, ""},
		"claim of another pod of its name": {own, foreignClaim,
			"PersistentVolumeClaim till-v was not created for this pod"},
		"new image":    {waits("ImagePullBackOff"), nil, "the image of container c may not be on the node"},
		"absent image": {waits("ErrImageNeverPull"), nil, "the image of container c may not be on the node"},
		"crashes":      {waits("CrashLoopBackOff"), nil, ""},
		"local volume": {disk, claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi"}), ""},
		"volume with a Secret": {disk, claimed(&corev1.CSIPersistentVolumeSource{Driver: "local.csi",
			NodeStageSecretRef: &corev1.SecretReference{Namespace: "nas", Name: "login"}}),
			"Secret login is not known"},
		"driver with a token": {volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "vault.csi"}}),
			objects{{kind: csiDrivers}: &storagev1.CSIDriver{
				ObjectMeta: metav1.ObjectMeta{Name: "vault.csi", ResourceVersion: "2"},
				Spec:       storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}}},
			}}, "no token for the audience vault"},
		"deleted Secret": {volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}),
			objects{objectScope(secrets, "shop", "s"): nil},
			"Secret s does not exist"},
		"deleted optional Secret": {volume(corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: "s", Optional: ptr.To(true)}}),
			objects{objectScope(secrets, "shop", "s"): nil}, ""},
		"attached volume": {disk, claimed(&corev1.CSIPersistentVolumeSource{Driver: "cloud.csi"}),
			"attached by the control plane"},
		"inline FC": {volume(corev1.VolumeSource{FC: &corev1.FCVolumeSource{}}), nil,
			"attached by the control plane"},
		"podCertificate": {projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{}}), nil,
			"new certificate"},
		"ClusterTrustBundle": {projected(corev1.VolumeProjection{
			ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}}), nil, "ClusterTrustBundle"},
		"token": {projected(corev1.VolumeProjection{
			ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}), nil, "no token for the API server"},
		"runtime class": {func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("kata") }, nil, "RuntimeClass kata"},
		"resource claim": {func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{ResourceClaimName: ptr.To("gpu")}}
		}, nil, "ResourceClaim gpu"},
		"made resource claim": {func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{ResourceClaimName: ptr.To("gpu")}}
		}, nil, "ResourceClaim gpu"},
		"device of a plugin": {devices("example.com/gpu"), edge, "container c needs example.com/gpu"},
		"unknown resource":   {devices("example.com/licence"), edge, ""},
		"memory":             {devices(corev1.ResourceMemory), edge, ""},
		"device of a claim": {func(p *corev1.Pod) {
			devices("example.com/gpu")(p)
			p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "gpu",
				RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c",
					ResourceName: "example.com/gpu"}}}
		}, edge, "ResourceClaim gpu"},
		"other label": {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "east"} }, edge,
			"does not match the Node's labels"},
		"its label": {func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "west"} },
			edge, ""},
		"required affinity": {affinity("east"), edge, "does not match the Node's labels"},
		"its affinity":      {affinity("west"), edge, ""},
		"taint": {func(p *corev1.Pod) { p.Spec.Tolerations = nil }, edge,
			"does not tolerate the Node's taint own=till"},
		"environment's Secret": {func(p *corev1.Pod) {
			from := &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "e"}}
			p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: from}}
		}, nil, "Secret e"},
	}
}

// missingOf is why a pod would not start.
func missingOf(s *Store, pod *corev1.Pod) []string {
	of := start{store: s, pod: pod, node: s.nodeObject()}
	of.explain()
	return of.missing
}

// TestWhatAPodLacks: each thing that would keep a pod from starting alone is named, and nothing else is.
func TestWhatAPodLacks(t *testing.T) {
	for name, test := range lacks() {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", UID: "till"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}},
				Tolerations: []corev1.Toleration{{Key: "own", Value: "till"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ImageID: "sha256:1"}}}}
		test.change(pod)
		store := kept(test.kept)
		missing := missingOf(store, pod)
		named := len(missing) == 1 && strings.Contains(missing[0], test.want)
		if (test.want == "" && len(missing) > 0) || (test.want != "" && !named) {
			t.Errorf("%s: %q, want %q", name, missing, test.want)
		}
	}
}

// TestExplain: the kubelet's certificate gets the answer, with the cloud and without, and a token does not. It is about
// pods that the kubelet starts again, and those that a shutdown of the node has ended.
func TestExplain(t *testing.T) {
	t.Parallel()
	f := running(t)
	for range 2 {
		var e Explanation
		code, body, err := f.get(f.kubelet(), ExplainPath)
		f.must(err)
		f.must(json.Unmarshal([]byte(body), &e))
		if code != http.StatusOK || len(e.Missing) > 0 || len(e.Pods) != 1 || e.Pods[0].Name != "till" {
			t.Errorf("got %d and %s", code, body)
		}
		if code, body := f.ask("some", ExplainPath); code == http.StatusOK {
			t.Errorf("a token got %s", body)
		}
		f.away()
	}
	to := sink{f.server.store, podScope("node0")}
	for i, status := range []corev1.PodStatus{{Phase: corev1.PodSucceeded}, {Phase: corev1.PodFailed},
		{Phase: corev1.PodFailed, Reason: "Terminated"}} {
		pod := podOf(fmt.Sprint("shop/ended-", i), types.UID(fmt.Sprint(i)))
		pod.Status = status
		to.ChangeAt("9", func() { to.Apply(wiretest.Object(&pod)) })
	}
	said := f.server.updateExplanation().Pods
	if len(said) != 2 || said[0].Name != "ended-2" || len(said[0].Missing) == 0 {
		t.Errorf("with pods that have ended: %v", said)
	}
	f.writeKubeconfig(f.issueUntil(f.authority, node0, time.Now().Add(-time.Minute)))
	if missing := f.server.updateExplanation().Missing; len(missing) != 1 ||
		!strings.Contains(missing[0], "certificate has expired at") {
		t.Errorf("got %q", missing)
	}
}

// TestMaxOfflineAge: after it the kubelet is answered nothing, nor with a clock by which the age cannot be told.
func TestMaxOfflineAge(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.config.MaxOfflineAge = 10 * time.Minute
	f.start()
	f.followed()
	client := f.clientFor(f.kubelet())
	list := func() error {
		_, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		return err
	}
	f.away()
	for _, test := range []struct {
		ago  time.Duration
		want string
	}{
		{9 * time.Minute, ""}, {11 * time.Minute, "after --max-offline-age=10m0s"},
		{-time.Minute, "the clock is behind"},
	} {
		f.setLastContact(time.Now().Add(-test.ago))
		err, reasons := list(), f.report().Reasons
		if test.want == "" {
			if err != nil || len(reasons) > 0 {
				t.Errorf("%s: %v and %q", test.ago, err, reasons)
			}
		} else if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), test.want) ||
			!slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(reason, test.want) }) {
			t.Errorf("%s: %v and %q, want %q", test.ago, err, reasons, test.want)
		}
	}
}

// TestAgeSurvives: what is on the disk of when kube-apiserver was last heard of is at most a tenth of
// --max-offline-age older, and only what it says of the node's pods counts.
func TestAgeSurvives(t *testing.T) {
	s := newStore("node0")
	s.contactPrecision = time.Minute
	begin := time.Now()
	s.noteContact(begin)
	s.noteContact(begin.Add(59 * time.Second))
	s.noteContact(begin.Add(61 * time.Second))
	s.noteContact(begin.Add(100 * time.Second))
	sink{s, scope{kind: services}}.ChangeAt("7", nil)
	next := newStore("node0")
	if err := next.load(taken(s, hourlyBytes)); err != nil || !next.lastContact.Equal(begin.Add(61*time.Second)) {
		t.Errorf("%s after the first: %v", next.lastContact.Sub(begin), err)
	}
}

// TestCondition: the Node says whether its pods would start as long as there is a lite-apiserver, and no longer.
func TestCondition(t *testing.T) {
	t.Parallel()
	f := running(t)
	if c := f.condition(); c.Reason != "KubeletElsewhere" {
		t.Errorf("no kubelet has asked, and it is %s: %s", c.Reason, c.Message)
	}
	f.server.kubeletSeenAt.Store(time.Now().Unix())
	c := f.condition()
	if c.Status != corev1.ConditionTrue || c.Type != v1.NodeStartsAlone {
		t.Errorf("got %s %s: %s", c.Status, c.Reason, c.Message)
	}
	f.must(f.server.follower.patchStatus(t.Context(), time.Second, c))
	f.stop()
	f.cloud.mu.Lock()
	defer f.cloud.mu.Unlock()
	if len(f.cloud.patched) != 2 || !strings.Contains(f.cloud.patched[0], `"type":"superedge.io/StartsAlone"`) ||
		f.cloud.patched[1] != `{"status":{"conditions":[{"$patch":"delete","type":"superedge.io/StartsAlone"}]}}` {
		t.Errorf("got %q", f.cloud.patched)
	}
}

// TestMetricsReference: docs/reference.md has the metrics as they are.
func TestMetricsReference(t *testing.T) {
	t.Parallel()
	f := running(t)
	docstest.CompareMetrics(t, "lite-apiserver", f.server.metrics.registry)
}

// TestImagesThatTheKubeletVerifies: of the images in the kubelet's records only those that nothing but tokens of
// ServiceAccounts have pulled keep a pod from starting.
func TestImagesThatTheKubeletVerifies(t *testing.T) {
	t.Parallel()
	records := t.TempDir()
	// As kubelets of 1.35 to 1.37 write them.
	const account = `"kubernetesServiceAccounts":[{"uid":"u","namespace":"shop","name":"default"}]`
	for name, mapping := range map[string]string{
		"sha256-a":     `"r.example:5000/token":{` + account + `},"token":{` + account + `}`,
		"sha256-b":     `"public":{"nodePodsAccessible":true}`,
		"sha256-e":     `"both":{"kubernetesSecrets":[{"uid":"s"}],` + account + `}`,
		"sha256-c":     `"secret":{"kubernetesSecrets":[{"uid":"s"}]}`,
		"sha256-d.tmp": `"cut`,
	} {
		content := `{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","imageRef":"sha256:1",` +
			`"lastUpdatedTime":"2026-01-01T00:00:00Z","credentialMapping":{` + mapping + `}}`
		if err := os.WriteFile(filepath.Join(records, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ofTokens := readImagesOfTokens(records)
	for image, refused := range map[string]bool{
		"token": true, "token:v1": true, "token@sha256:00": true, "token:v1@sha256:00": true,
		"r.example:5000/token": true, "r.example:5000/token:v1": true, "r.example:5000/other": false,
		"public": false, "both": false, "secret": false, "preloaded": false,
	} {
		for _, spec := range []corev1.PodSpec{
			{Containers: []corev1.Container{{Image: image}}}, {InitContainers: []corev1.Container{{Image: image}}},
			{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: image}}}}},
		} {
			of := start{pod: &corev1.Pod{Spec: spec}, ofTokens: ofTokens}
			of.checkImages()
			if strings.Contains(strings.Join(of.missing, "; "), "was pulled with a token") != refused {
				t.Errorf("%s: %q", image, of.missing)
			}
		}
	}
	if none := readImagesOfTokens("/nowhere"); len(none) > 0 {
		t.Errorf("without records: %v", none)
	}
}

// TestNodeWithoutACSINode: the kubelet makes it after its start, and a node with nothing else to wait for is ready
// before. Without kube-apiserver the answer is 503 as ever: 404 would make the kubelet give up after some tries to make
// it.
func TestNodeWithoutACSINode(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	delete(f.cloud.lists, "/apis/storage.k8s.io/v1/csinodes/node0")
	f.start()
	f.followed()
	f.rebootWithoutTheCloud()
	if reasons := f.report().Reasons; len(reasons) > 0 {
		t.Errorf("it is not ready: %q", reasons)
	}
	_, err := f.clientFor(f.kubelet()).StorageV1().CSINodes().Get(t.Context(), "node0", metav1.GetOptions{})
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("got %v", err)
	}
}

// TestSetsThatWereNeverOnTheDisk: without one of the sets that every node needs no pod would start again. An older
// state of it would do.
func TestSetsThatWereNeverOnTheDisk(t *testing.T) {
	s := newStore("node0")
	reach := func(version string) {
		for _, in := range nodeScopes("node0") {
			sink{s, in}.ChangeAt(version, func() {})
		}
	}
	unsaved := func(s *Store) []string { return (&Server{store: s}).updateExplanation().Unsaved }
	reach("1")
	if unsaved := unsaved(s); len(unsaved) != len(nodeScopes("node0")) {
		t.Errorf("before a commit: %q", unsaved)
	}
	state := taken(s, hourlyBytes)
	if unsaved := unsaved(s); len(unsaved) == 0 {
		t.Error("after a commit that failed")
	}
	s.noteSaved(s.selectPending(hourlyBytes))
	reach("2")
	next := newStore("node0")
	if problems := next.load(state); len(problems) > 0 || len(unsaved(s))+len(unsaved(next)) > 0 {
		t.Errorf("after a commit: %q, after a start: %q, %v", unsaved(s), unsaved(next), problems)
	}
}
