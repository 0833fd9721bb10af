package kubeadm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/application-grid/application-grid/test/kubeadm"
)

// aloneWorkload is one of each kind of what a node has to start again: %[1]s is the image, %[2]s the node.
const aloneWorkload = `
apiVersion: v1
kind: Namespace
metadata: {name: alone}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: alone}
data: {color: green}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: alone}
stringData: {word: sesame}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, namespace: alone}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      nodeName: %[2]s
      containers:
        - name: echo
          image: %[1]s
          env:
            - {name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}
            - {name: WORD, valueFrom: {secretKeyRef: {name: password, key: word}}}
          readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
          volumeMounts:
            - {name: settings, mountPath: /settings}
            - {name: password, mountPath: /password}
            - {name: vault, mountPath: /vault}
      volumes:
        - {name: settings, configMap: {name: settings}}
        - {name: password, secret: {secretName: password}}
        - name: vault
          projected: {sources: [{serviceAccountToken: {path: token, audience: vault, expirationSeconds: 7200}}]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Mi}
  accessModes: [ReadWriteOnce]
  storageClassName: disk
  local: {path: /var/lib/disk}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [
    {key: kubernetes.io/hostname, operator: In, values: [%[2]s]}]}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: alone}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      containers:
        - name: echo
          image: %[1]s
          readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
          volumeMounts: [{name: disk, mountPath: /disk}]
  volumeClaimTemplates:
    - metadata: {name: disk}
      spec: {accessModes: [ReadWriteOnce], storageClassName: disk, resources: {requests: {storage: 1Mi}}}
`

const (
	liteDir = "/var/lib/lite-apiserver"
	// startsAgain is how soon after power is back all of the node's pods are ready, without a link.
	startsAgain = 90 * time.Second
)

// TestNodeStartsItsPodsAlone cuts the cloud off, and a node's power. Without lite-apiserver no pod of the API starts on
// it. With it all of them do, with their ConfigMap, Secret, local volume and tokens, and go on when the cloud is back.
func TestNodeStartsItsPodsAlone(t *testing.T) {
	o := newOperator(t)
	node := shared.Node("node1")
	_, err := node.Run(t.Context(), "mkdir", "-p", "/var/lib/disk")
	o.must(err)
	o.must(node.WriteFile(kubeadm.KubeletArguments, "KUBELET_EXTRA_ARGS=--read-only-port=10255\n"))
	o.restartKubelet(node)
	o.shell("kubectl apply -f - <<'EOF'" + fmt.Sprintf(aloneWorkload, kubeadm.EchoImage, node.Name()) + "EOF")
	o.podsAreReady(node)
	defer func() {
		o.T = t
		o.shell("kubectl delete namespace alone\nkubectl delete persistentvolume disk")
	}()

	t.Run("without it", func(t *testing.T) {
		o.T = t
		o.powerCutWithoutCloud(node)
		time.Sleep(30 * time.Second) // nothing is to happen
		if names := o.processesOn(node.Name()); slices.Contains(names, "echo") {
			t.Errorf("a pod of the API has started: %v", names)
		}
		o.must(shared.ControlPlane().JoinLink())
		o.podsAreReady(node)
	})

	o.T = t
	o.must(node.Install(filepath.Join(programs, "lite-apiserver"), kubeadm.LiteProgram))
	o.must(node.WriteFile(kubeadm.LiteConfig,
		"LITE_APISERVER_ARGS=\"--unsealed --file-cache-path="+liteDir+"\"\n"))
	o.eventually("lite-apiserver is ready", func() error { return o.liteReady(node) })
	o.must(node.WriteFile(kubeadm.KubeletArguments,
		"KUBELET_EXTRA_ARGS=\"--read-only-port=10255 --kubeconfig="+liteDir+"/kubelet.conf\"\n"))
	o.restartKubelet(node)
	o.podsAreReady(node)
	defer func() {
		o.T = t
		o.must(node.WriteFile(kubeadm.KubeletArguments, ""))
		_, err := node.Run(t.Context(), "rm", kubeadm.LiteConfig)
		o.must(err)
		o.restartKubelet(node)
		_, err = node.Run(t.Context(), "pkill", "lite-apiserver")
		o.must(err)
	}()

	t.Run("who may ask", func(t *testing.T) {
		o.T = t
		// A certificate that names the node, of another CA.
		o.shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout stranger.key -out stranger.crt " +
			"-subj /O=system:nodes/CN=system:node:" + node.Name() + " 2>&1\ncat stranger.key >> stranger.crt")
		o.must(node.Install(filepath.Join(o.directory, "stranger.crt"), "/var/tmp/stranger.pem"))
		for what, arguments := range map[string][]string{
			"nobody":               nil,
			"a made-up token":      {"-H", "Authorization: Bearer x"},
			"another certificate":  {"--cert", "/var/tmp/stranger.pem"},
			"a header of a proxy":  {"-H", "X-Remote-User: system:node:" + node.Name()},
			"a kubelet's imitator": {"-A", "kubelet/v1.37.1"},
		} {
			output, err := node.Run(t.Context(), "curl", append([]string{"-sk", "-w", "%{http_code}",
				"https://127.0.0.1:51003/api/v1/namespaces/alone/secrets/password"}, arguments...)...)
			if strings.Contains(output, "sesame") || (err == nil && !strings.HasSuffix(output, "401")) {
				t.Errorf("%s is answered %s", what, output)
			}
			if err != nil && what != "another certificate" { // that handshake fails
				t.Errorf("%s: %v", what, err)
			}
		}
	})

	t.Run("with it", func(t *testing.T) {
		o.T = t
		before := o.filesOf(node)
		time.Sleep(3 * time.Second) // the promise is for what was recorded 2 s before
		begin := o.powerCutWithoutCloud(node)
		o.eventually("all pods are ready without the cloud", func() error { return o.readyOn(node) })
		if took := time.Since(begin); took > startsAgain {
			t.Errorf("that took %s", took)
		} else {
			t.Logf("all pods are ready %.1f s after power is back", took.Seconds())
		}
		after := o.filesOf(node)
		tokens := map[string]string{}
		for _, name := range []string{"token", "vault"} { // each is one of several that kube-apiserver has given
			tokens[name] = after[name]
			delete(before, name)
			delete(after, name)
		}
		if !maps.Equal(before, after) {
			t.Errorf("the containers have %v, and had %v", after, before)
		}
		kubelet, err := node.Run(t.Context(), "pgrep", "-x", "kubelet")
		o.must(err)
		containers := o.containersOn(node)

		o.must(shared.ControlPlane().JoinLink())
		begin = time.Now()
		o.podsAreReady(node)
		t.Logf("kube-apiserver says that they are ready %.1f s after the link is back", time.Since(begin).Seconds())
		again, err := node.Run(t.Context(), "pgrep", "-x", "kubelet")
		if err != nil || again != kubelet {
			t.Errorf("the kubelet has restarted: %q, then %q (%v)", kubelet, again, err)
		}
		if now := o.containersOn(node); !maps.Equal(containers, now) {
			t.Errorf("containers have restarted with the return of the cloud: %v, then %v", containers, now)
		}
		for name, token := range tokens {
			review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
			if name == "vault" {
				review.Spec.Audiences = []string{"vault"}
			}
			review, err := o.client.AuthenticationV1().TokenReviews().Create(t.Context(), review, metav1.CreateOptions{})
			o.must(err)
			if !review.Status.Authenticated {
				t.Errorf("kube-apiserver refuses the token %s: %s", name, review.Status.Error)
			}
		}
	})

	t.Run("a pod that is gone stays gone", func(t *testing.T) {
		o.T = t
		o.shell("kubectl -n alone scale statefulset db --replicas=0 --timeout=1m\n" +
			"kubectl -n alone wait --for=delete pod/db-0 --timeout=1m")
		o.powerCutWithoutCloud(node)
		o.eventually("the other pods are ready without the cloud", func() error {
			ready, err := o.kubeletsPods(node)
			if err == nil && !ready["shop"] {
				err = fmt.Errorf("there are %v", ready)
			}
			return err
		})
		if ready, err := o.kubeletsPods(node); err != nil || len(ready) != 1 {
			t.Errorf("the kubelet has %v, %v", ready, err)
		}
		o.must(shared.ControlPlane().JoinLink())
		o.podsAreReady(node)
	})
}

// powerCutWithoutCloud takes the cloud away from all nodes, and this node's power, and gives power back. It returns when
// that was.
func (o *operator) powerCutWithoutCloud(node *kubeadm.Node) time.Time {
	o.Helper()
	o.must(shared.ControlPlane().CutLink())
	o.must(node.PowerCut())
	o.must(node.PowerOn())
	return time.Now()
}

func (o *operator) restartKubelet(node *kubeadm.Node) {
	o.Helper()
	before, err := node.Run(o.Context(), "pgrep", "-x", "kubelet")
	o.must(err)
	_, err = node.Run(o.Context(), "pkill", "-x", "kubelet")
	o.must(err)
	o.eventually("the kubelet has restarted", func() error {
		now, err := node.Run(o.Context(), "pgrep", "-x", "kubelet")
		if err == nil && now == before {
			err = errors.New("it has not ended")
		}
		return err
	})
}

// liteReady is nil if lite-apiserver is ready.
func (o *operator) liteReady(node *kubeadm.Node) error {
	reply, err := node.Get(o.Context(), "http://127.0.0.1:51008/readyz")
	if err == nil && reply.Status != http.StatusOK {
		err = fmt.Errorf("it says %s", reply.Body)
	}
	return err
}

// podsAreReady waits until kube-apiserver says that the node and its pods of the namespace are ready, as the kubelet
// that runs now has said.
func (o *operator) podsAreReady(node *kubeadm.Node) {
	o.Helper()
	o.eventually("the kubelet says that its pods are ready", func() error { return o.readyOn(node) })
	o.eventually("kube-apiserver says so", func() error {
		pods, err := o.client.CoreV1().Pods("alone").List(o.Context(), metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node.Name()).String()})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if !isReady(&pod) {
				return fmt.Errorf("pod %s is not", pod.Name)
			}
		}
		found, err := o.client.CoreV1().Nodes().Get(o.Context(), node.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range found.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
				return errors.New(condition.Message)
			}
		}
		return nil
	})
}

// kubeletsPods are the workloads of the namespace whose pods the kubelet has, and whether they are ready.
func (o *operator) kubeletsPods(node *kubeadm.Node) (map[string]bool, error) {
	reply, err := node.Get(o.Context(), "http://127.0.0.1:10255/pods")
	if err != nil {
		return nil, err
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(reply.Body), &list); err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for _, pod := range list.Items {
		if pod.Namespace == "alone" {
			ready[pod.Labels["app"]] = isReady(&pod)
		}
	}
	return ready, nil
}

func (o *operator) readyOn(node *kubeadm.Node) error {
	ready, err := o.kubeletsPods(node)
	if err == nil && !(ready["shop"] && (ready["db"] || len(ready) == 1)) {
		err = fmt.Errorf("there are %v", ready)
	}
	return err
}

// filesOf are what the containers of the workload are given.
func (o *operator) filesOf(node *kubeadm.Node) map[string]string {
	o.Helper()
	found := map[string]string{}
	for name, pattern := range map[string]string{
		"color": "kubernetes.io~configmap/settings/color", "word": "kubernetes.io~secret/password/word",
		"token": "kubernetes.io~projected/kube-api-access-*/token", "vault": "kubernetes.io~projected/vault/token",
		"ca": "kubernetes.io~projected/kube-api-access-*/ca.crt",
	} {
		pod := o.podOf("shop", node)
		content, err := node.Run(o.Context(), "sh", "-c", "cat /var/lib/kubelet/pods/"+pod+"/volumes/"+pattern)
		o.must(err)
		found[name] = content
	}
	environment, err := node.Run(o.Context(), "sh", "-c",
		"for p in $(pgrep -x echo); do tr '\\0' '\\n' </proc/$p/environ | grep -E '^(COLOR|WORD|DB_.*|KUBERNETES_SERVICE_HOST)='; done | sort -u")
	o.must(err)
	found["environment"] = environment
	return found
}

// podOf is the UID of the workload's pod on the node, as the kubelet has it.
func (o *operator) podOf(app string, node *kubeadm.Node) string {
	o.Helper()
	reply, err := node.Get(o.Context(), "http://127.0.0.1:10255/pods")
	o.must(err)
	var list corev1.PodList
	o.must(json.Unmarshal([]byte(reply.Body), &list))
	for _, pod := range list.Items {
		if pod.Labels["app"] == app {
			return string(pod.UID)
		}
	}
	o.Fatalf("the kubelet has no pod of %s", app)
	return ""
}

// containersOn are the ids of the containers of the namespace's pods, by the pods' names.
func (o *operator) containersOn(node *kubeadm.Node) map[string]string {
	o.Helper()
	reply, err := node.Get(o.Context(), "http://127.0.0.1:10255/pods")
	o.must(err)
	var list corev1.PodList
	o.must(json.Unmarshal([]byte(reply.Body), &list))
	found := map[string]string{}
	for _, pod := range list.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if pod.Namespace == "alone" {
				found[pod.Name] = status.ContainerID
			}
		}
	}
	return found
}
