package lite

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
)

// TestOutcomeOfDelete: a pod is gone once kube-apiserver has said so, or if nobody knows; after any other answer, and a
// request that does not remove this pod at once, it is there again.
func TestOutcomeOfDelete(t *testing.T) {
	now, this := ptr.To[int64](0), metav1.NewUIDPreconditions("u1")
	for name, test := range map[string]struct {
		code int
		body string
		// options are those of the kubelet if nil. different is what else is different.
		options   *metav1.DeleteOptions
		different string
		// then is the answer to a second DELETE; 0 for none.
		then  int
		stays bool
	}{
		"done": {code: http.StatusOK, body: "{}"},
		"a dry run": {code: http.StatusOK, body: "{}", stays: true,
			options: &metav1.DeleteOptions{GracePeriodSeconds: now, Preconditions: this, DryRun: []string{"All"}}},
		"a dry run by the URL": {code: http.StatusOK, body: "{}", different: "dryRun", stays: true},
		"with a grace": {code: http.StatusOK, body: "{}", stays: true,
			options: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](30), Preconditions: this}},
		"without a UID": {code: http.StatusOK, body: "{}", stays: true,
			options: &metav1.DeleteOptions{GracePeriodSeconds: now}},
		"without options": {code: http.StatusOK, body: "{}", options: &metav1.DeleteOptions{}, stays: true},
		"of a pod before it": {code: http.StatusOK, body: "{}", stays: true, options: &metav1.DeleteOptions{
			GracePeriodSeconds: now, Preconditions: metav1.NewUIDPreconditions("u0")}},
		"too long":                   {code: http.StatusOK, body: "{}", different: "long", stays: true},
		"in YAML":                    {code: http.StatusOK, body: "{}", different: "yaml", stays: true},
		"another UID":                {code: http.StatusConflict, body: "{}", stays: true},
		"forbidden":                  {code: http.StatusForbidden, body: "{}", stays: true},
		"there is none":              {code: http.StatusNotFound, body: notFoundBody("till")},
		"a gateway's 404":            {code: http.StatusNotFound, body: "<html>404</html>"}, // the outcome is not known
		"a gateway's 503":            {code: http.StatusServiceUnavailable, body: "<html>503</html>"},
		"it ends in mid-word":        {code: -1},
		"too many requests":          {code: http.StatusTooManyRequests, body: "{}"},
		"done, then refused":         {code: http.StatusOK, body: "{}", then: http.StatusConflict},
		"refused, then done":         {code: http.StatusConflict, body: "{}", then: http.StatusOK},
		"refused, then nobody knows": {code: http.StatusConflict, body: "{}", then: -1},
		// The kubelet repeats it every 10 s. An intention that is written and erased each time would wear out flash.
		"refused, and refused again": {code: http.StatusConflict, body: "{}", then: http.StatusForbidden},
		"a gateway's 404, then refused": {code: http.StatusNotFound, body: "<html>404</html>",
			then: http.StatusForbidden, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := running(t)
			remove := func(code int, body string) error {
				f.cloud.deletes.Store(&answerOf{code, body})
				request := f.clientFor(f.kubelet()).CoreV1().RESTClient().Delete().Namespace("shop").Resource("pods").
					Name("till").Body(cmp.Or(test.options,
					&metav1.DeleteOptions{GracePeriodSeconds: now, Preconditions: this}))
				switch test.different {
				case "dryRun":
					request.Param("dryRun", "All")
				case "long":
					request.SetHeader("Content-Type", "application/json").Body([]byte(
						`{"gracePeriodSeconds":0}` + strings.Repeat(" ", deleteLimit)))
				case "yaml":
					request.SetHeader("Content-Type", "application/yaml").Body([]byte("gracePeriodSeconds: 0"))
				}
				return request.Do(t.Context()).Error()
			}
			err := remove(test.code, test.body)
			if test.then != 0 {
				err = remove(test.then, "{}")
			}
			f.rebootWithoutTheCloud()
			pods, listErr := f.podsOfNode0(f.clientFor(f.kubelet()))
			f.must(listErr)
			if stays := len(pods) == 1; stays != test.stays {
				t.Errorf("it stays: %v, after %v", stays, err)
			}
			if apierrors.IsBadRequest(err) != (test.different == "long") {
				t.Errorf("the answer: %v", err)
			}
		})
	}
}

// TestRefusedAgainAndAgain: only the first two of the DELETEs that kube-apiserver refuses write to the disk.
func TestRefusedAgainAndAgain(t *testing.T) {
	t.Parallel()
	f := running(t)
	f.cloud.deletes.Store(&answerOf{http.StatusForbidden, "{}"})
	var first int64
	for i := range 20 {
		err := f.clientFor(f.kubelet()).CoreV1().Pods("shop").Delete(t.Context(), "till",
			metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions("u1")})
		if !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		if f.server.commit(klog.Background(), hourlyBytes); i == 1 {
			first = f.server.bytesWritten()
		}
	}
	if more := f.server.bytesWritten() - first; more > 0 {
		t.Errorf("18 more DELETEs have written %d bytes", more)
	}
}

// TestPowerCutInARepeatedDelete: while the answer to a DELETE is not known, its pod is gone, also if kube-apiserver has
// refused DELETEs before: the power may fail after kube-apiserver has removed it.
func TestPowerCutInARepeatedDelete(t *testing.T) {
	for _, refusals := range []int{0, 1, 2, 3} {
		p := newKeeper(t)
		p.at("5", func(to sink) { to.Apply(till("u1")) })
		p.server.commit(klog.Background(), hourlyBytes)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v1/namespaces/shop/pods/till", nil)
		for range refusals {
			p.server.commitRemoval(r, "u1", intended)
			p.server.commitRemoval(r, "u1", refused)
			p.expect("refused", "u1")
		}
		r.Body = io.NopCloser(strings.NewReader(`{"gracePeriodSeconds":0,"preconditions":{"uid":"u1"}}`))
		_, err := p.server.noteDelete(httptest.NewRecorder(), r)
		p.must(err)
		p.must(p.server.disk.Close())
		p.open()
		p.expect(fmt.Sprintf("after %d refusals", refusals))
	}
}

func notFoundBody(name string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,`+
		`"details":{"name":%q,"kind":"pods"}}`, name)
}

// TestNothingOnTheDiskBlocksAStart: requests are passed on, what kube-apiserver says is kept in memory, and /readyz
// says so and is well.
func TestNothingOnTheDiskBlocksAStart(t *testing.T) {
	for name, spoil := range map[string]func(f *fixture) error{
		"no directory": func(f *fixture) error {
			return os.WriteFile(filepath.Join(f.config.Dir, storeDir), nil, 0o600)
		},
		"another key": func(f *fixture) error {
			f.start()
			f.followed()
			f.stop()
			f.config.SealKey = bytes.Repeat([]byte{1}, 32)
			return nil
		},
		"the serving certificate is damaged": func(f *fixture) error {
			return os.WriteFile(filepath.Join(f.config.Dir, servingFile), []byte("x"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.must(spoil(f))
			f.start()
			f.followed()
			report := f.report()
			said := slices.ContainsFunc(report.Details, func(n string) bool {
				return strings.Contains(n, "not on disk: ")
			})
			if len(report.Reasons) > 0 || said != (name != "the serving certificate is damaged") {
				t.Errorf("%+v", report)
			}
			if e := f.server.updateExplanation(); said == (len(e.Stuck()) == 0 && len(e.Unsaved) == 0) {
				t.Errorf("what is on the disk: %+v", e)
			}
			f.away()
			if pods, err := f.podsOfNode0(f.clientFor(f.kubelet())); err != nil || len(pods) != 1 {
				t.Errorf("%d pods, %v", len(pods), err)
			}
		})
	}
}

// TestUnreadableEntry: one entry costs its set until the next list, and nothing else.
func TestUnreadableEntry(t *testing.T) {
	from := newStore("node0")
	for _, in := range []scope{
		podScope("node0"), objectScope(secrets, "shop", "a"), objectScope(secrets, "shop", "b"),
	} {
		to := sink{from, in}
		to.ChangeAt("5", func() {
			to.Apply(wiretest.Object(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop",
				Name: in.objectName(), ResourceVersion: "5"}}))
		})
	}
	state := taken(from, hourlyBytes)
	broken := objectScope(secrets, "shop", "a")
	state[objectKey(broken, types.NamespacedName{Namespace: "shop", Name: "a"})] = []byte("\xff\xff")
	state[keyToken+"\x00{"] = []byte("x")
	s := newStore("node0")
	if problems := s.load(state); len(problems) != 2 {
		t.Errorf("%v", problems)
	}
	if _, _, ok := s.readScope(broken); ok {
		t.Error("a set with an entry that cannot be read is answered")
	}
	if _, objects, ok := s.readScope(objectScope(secrets, "shop", "b")); !ok || len(objects) != 1 {
		t.Errorf("the other one is lost: %v", objects)
	}
	to := sink{s, broken}
	to.ChangeAt("6", func() { to.Replace(nil) }) // it does not exist any longer
	for key, value := range taken(s, hourlyBytes) {
		if state[key] = value; value == nil {
			delete(state, key)
		}
	}
	s = newStore("node0")
	if problems := s.load(state); len(problems) > 0 || s.versionOf(broken) != "6" {
		t.Errorf("after the next start: %v, at %q", problems, s.versionOf(broken))
	}
}

// TestTheClockGoesOn: while the machine's clock is behind, the time that tokens are judged by goes on.
func TestTheClockGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, truth := newStore("node0"), time.Now().Add(5*time.Hour)
		if problems := s.load(map[string][]byte{keyHeard: textOf(truth)}); len(problems) > 0 {
			t.Fatal(problems)
		}
		time.Sleep(time.Hour)
		if now := s.now(); !now.Equal(truth.Add(time.Hour)) {
			t.Errorf("an hour later it is %s after", now.Sub(truth))
		}
	})
}

// TestClockBehindWithContact: the machine starts with a clock that is an hour behind, hears from kube-apiserver, and is
// cut off. What expires is judged by the clock of kube-apiserver, which has issued tokens, also after the next start.
func TestClockBehindWithContact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const behind, lifetime = time.Hour, 30 * time.Minute
		truth := func() time.Time { return time.Now().Add(behind) }
		s, old, renewed := newStore("node0"), tokenRequest{Pod: "old"}, tokenRequest{Pod: "renewed"}
		issued := func() token {
			return token{Issued: truth(), Expiration: truth().Add(lifetime), Until: truth().Add(lifetime)}
		}
		kept := issued()
		time.Sleep(lifetime / 2)
		text, err := json.Marshal(kept)
		if err != nil {
			t.Fatal(err)
		}
		state := map[string][]byte{keyHeard: textOf(truth()), tokenKey(old): text}
		if problems := s.load(state); problems != nil {
			t.Fatal(problems)
		}
		sink{s, podScope("node0")}.ChangeAt("5", nil) // a bookmark
		fetched := issued()
		fetched.fetched = time.Now()
		s.putToken(renewed, fetched)
		time.Sleep(lifetime/2 + time.Minute)
		if !kept.hasExpired(s.now()) || s.now().Before(truth()) {
			t.Errorf("it is %s before the truth, and a token has expired: %v", truth().Sub(s.now()),
				kept.hasExpired(s.now()))
		}
		again := newStore("node0")
		if problems := again.load(taken(s, hourlyBytes)); problems != nil {
			t.Fatal(problems)
		}
		if late := truth().Sub(again.now()); late > lifetime {
			t.Errorf("after the next start it is %s before the truth", late)
		}
	})
}

// TestLaggingReplica: after a start the first list is not older than what is kept, whichever replica answers. Only of a
// kube-apiserver that was restored from a backup it is.
func TestLaggingReplica(t *testing.T) {
	t.Parallel()
	at := func(version string, list map[string]any) map[string]any {
		list["metadata"] = map[string]any{"resourceVersion": version}
		return list
	}
	podsAt := func(version, uid string) map[string]any {
		return at(version, list("PodList", "v1", corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop",
			Name: "till", UID: types.UID(uid), ResourceVersion: version}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "password"}}}}}}))
	}
	secretsAt := func(version, uid string) map[string]any {
		return at(version, list("SecretList", "v1", corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop",
			Name: "password", UID: types.UID(uid), ResourceVersion: version}}))
	}
	const secretsPath = "/api/v1/namespaces/shop/secrets"
	const whileItRuns = "restored from a backup while it runs"
	for name, newest := range map[string]string{
		"a replica lags": "9", "restored from a backup": "4", whileItRuns: "4",
		"restored with --bump-revision": "1000000009",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := running(t)
			if name != whileItRuns {
				f.stop()
			}
			f.cloud.mu.Lock()
			f.cloud.lags = map[string]any{"/api/v1/pods": podsAt("3", "u0"), secretsPath: secretsAt("3", "u0")}
			f.cloud.lists["/api/v1/pods"], f.cloud.lists[secretsPath] = podsAt(newest, "u9"), secretsAt(newest, "u9")
			f.cloud.mu.Unlock()
			if f.cloud.CloseClientConnections(); name != whileItRuns {
				f.start()
			}
			patience.Until(t, "the newest lists are kept", func() error {
				for _, in := range []scope{podScope("node0"), objectScope(secrets, "shop", "password")} {
					version, objects, _ := f.server.store.readScope(in)
					if len(objects) == 1 && objects[0].UID == "u0" {
						t.Fatalf("the list of the replica that lags is used, at version %d", version)
					}
					if strconv.FormatUint(version, 10) != newest || objects[0].UID != "u9" {
						return fmt.Errorf("%s are of version %d", in.kind.Resource, version)
					}
				}
				return nil
			})
		})
	}
}

// TestRefusals: pods that a kubelet does not start are named.
func TestRefusals(t *testing.T) {
	base := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till"},
			Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", ImageID: "sha256:1"}}}}
	}
	for want, change := range map[string]func(*corev1.Pod){
		"":                  func(*corev1.Pod) {},
		"restartPolicy":     func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever },
		"image of volume v": func(p *corev1.Pod) { p.Spec.Volumes = imageVolume(corev1.PullAlways) },
		"no container has run": func(p *corev1.Pod) {
			p.Spec.Volumes, p.Status = imageVolume(corev1.PullIfNotPresent), corev1.PodStatus{}
		},
		"ResourceClaim gpu is": func(p *corev1.Pod) { p.Status.ExtendedResourceClaimStatus = gpuClaim() },
		"graceful shutdown": func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Terminated"
		},
		"being deleted": func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) },
		"activeDeadlineSeconds": func(p *corev1.Pod) {
			p.Spec.ActiveDeadlineSeconds = ptr.To[int64](60)
			p.Status.StartTime = ptr.To(metav1.NewTime(time.Now().Add(-time.Hour)))
		},
	} {
		pod := base()
		change(pod)
		if missing := strings.Join(missingOf(kept(nil), pod), "; "); !strings.Contains(missing, want) ||
			(want == "") != (missing == "") {
			t.Errorf("%q, want %q", missing, want)
		}
	}
}

func imageVolume(policy corev1.PullPolicy) []corev1.Volume {
	return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: "r", PullPolicy: policy}}}}
}

func gpuClaim() *corev1.PodExtendedResourceClaimStatus {
	return &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "gpu"}
}

// TestNotOnDisk: of a pod it is said what of its needs is in memory only.
func TestNotOnDisk(t *testing.T) {
	s := kept(nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "till", ResourceVersion: "3"}}
	sink{s, podScope("node0")}.ChangeAt("3", func() { sink{s, podScope("node0")}.Apply(wiretest.Object(pod)) })
	for _, saved := range []bool{false, true} {
		if saved {
			s.noteSaved(s.selectPending(hourlyBytes))
		}
		said := strings.Contains(strings.Join(missingOf(s, pod), "; "), "the pod is not on the disk")
		if count, _ := s.unsavedChanges(); said == saved || (count == 0) != saved {
			t.Errorf("on the disk: %v, and %d changes are not, said: %v", saved, count, said)
		}
	}
}

// TestAccountsDoNotHoldUpTheNode: what accounts read is written when there is time, set by set, each of them whole.
func TestAccountsDoNotHoldUpTheNode(t *testing.T) {
	s := newStore("node0")
	s.allow([]types.NamespacedName{{Namespace: "a", Name: "dns"}})
	listed := *services
	listed.account = "a/dns"
	for i := range 10 {
		in := scope{s.kinds[listed.key()], fmt.Sprint("ns", i), ""}
		to := sink{s, in}
		to.ChangeAt("5", func() {
			for j := range 3 {
				to.Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: in.namespace,
					Name: fmt.Sprint("s", j), ResourceVersion: "5", Annotations: map[string]string{
						"x": strings.Repeat("x", 300<<10)}}}))
			}
		})
	}
	sink{s, podScope("node0")}.ChangeAt("5", func() {})
	pods := podScope("node0").key(keySet)
	changes := s.selectPending(1)
	if len(changes) != 2 || changes[pods] == nil || changes[keyHeard] == nil {
		t.Errorf("%d changes without time", len(changes))
	}
	s.noteSaved(changes)
	changes = s.selectPending(hourlyBytes)
	if len(changes)%4 != 0 || len(changes) == 0 || len(changes) > 16 {
		t.Errorf("%d changes at once, of sets of 4", len(changes))
	}
	for range 10 {
		s.noteSaved(s.selectPending(hourlyBytes))
	}
	if count, _ := s.unsavedChanges(); count > 0 {
		t.Errorf("%d changes are never written", count)
	}
}

// TestSelectorsOfAccounts: any number of selectors select everything; only those that say what a field is are kept.
func TestSelectorsOfAccounts(t *testing.T) {
	s := newStore("node0")
	s.allow([]types.NamespacedName{{Namespace: "a", Name: "dns"}})
	for query, want := range map[string]bool{"metadata.name=x": true, "metadata.name!=x": false, "": true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/services", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.URL.RawQuery = "fieldSelector=" + query
		if _, ok := s.scopeOf(r, "a/dns"); ok != want {
			t.Errorf("%q is kept: %v", query, ok)
		}
	}
}

// TestOnlyTheObjectIsNotFound: 404 of a gateway is about nothing.
func TestOnlyTheObjectIsNotFound(t *testing.T) {
	resource := corev1.Resource("pods")
	gateway := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resource, "x", "404 page not found", 0,
		true)
	if isNotFound(gateway, "x") || !isNotFound(apierrors.NewNotFound(resource, "x"), "x") ||
		isNotFound(apierrors.NewNotFound(resource, "y"), "x") {
		t.Error("a gateway's 404, or one of another object, is taken for kube-apiserver's")
	}
}

// TestLowerCaseBearer: the name of the scheme has no case.
func TestLowerCaseBearer(t *testing.T) {
	for header, want := range map[string]string{"bearer x": "x", "Bearer x": "x", "Basic x": "", "": ""} {
		r := &http.Request{Header: http.Header{"Authorization": {header}}}
		if got := bearerOf(r); got != want {
			t.Errorf("%q: %q", header, got)
		}
	}
}
