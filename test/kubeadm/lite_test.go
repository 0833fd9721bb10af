package kubeadm_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
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
	// kubeletCertificate is the kubelet's own, with its key.
	kubeletCertificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	// removed is how long after the end of its container a pod is certainly gone.
	removed = 1500 * time.Millisecond
	// startsAgain is how soon after power is back all of the node's pods are ready, without a link.
	startsAgain = 90 * time.Second
)

var removals = flag.Int("lite.removals", 2, "how often the power is cut while a pod is removed, 20 s each")

// TestNodeStartsItsPodsAlone cuts the cloud off, and a node's power. Without lite-apiserver no pod of the API starts on
// it. With it all of them do, with their ConfigMap, Secret, local volume and tokens, and go on when the cloud is back.
func TestNodeStartsItsPodsAlone(t *testing.T) {
	o := &operator{shared.Operator(t, "kubeadm.md")}
	node := shared.Node("node1")
	_, err := node.Run(t.Context(), "mkdir", "-p", "/var/lib/disk")
	o.Must(err)
	o.Shell("kubectl apply -f - <<'EOF'" + fmt.Sprintf(aloneWorkload, kubeadm.EchoImage, node.Name()) + "EOF")
	o.podsAreReady(node, "shop", "db")
	defer func() {
		for _, name := range []string{"kubelet", "lite-apiserver"} {
			if content, err := node.ReadFile("/var/log/" + name + ".log"); t.Failed() && err == nil {
				t.Logf("%s of %s:\n%s", name, node.Name(), content[max(0, len(content)-30_000):])
			}
		}
		o.Shell("kubectl delete namespace alone\nkubectl delete persistentvolume disk")
	}()

	step := func(name string, do func(*kubeadm.Node)) { o.Step(name, func() { do(node) }) }
	step("without it", o.startsNothingAlone)
	end := o.useLite(node)
	o.podsAreReady(node, "shop", "db")
	defer end()
	step("who may ask", o.refusesOthers)
	step("with it", o.startsAllAlone)
	step("wrong clocks", o.wrongClocks)
	step("the same node online", o.startsAllOnline)
	step("power cuts while a pod is removed", func(node *kubeadm.Node) {
		for round := range *removals {
			o.cutWhileRemoved(node, time.Duration(rand.Int64N(int64(removed))), round)
		}
	})
	step("a pod that is gone stays gone", o.staysGone)
}

// startsNothingAlone: without lite-apiserver no pod of the API starts while the cloud is cut off.
func (o *operator) startsNothingAlone(node *kubeadm.Node) {
	o.Helper()
	o.powerCutWithoutCloud(node)
	time.Sleep(15 * time.Second) // nothing is to happen
	if names := o.processesOn(node.Name()); slices.Contains(names, "echo") {
		o.Errorf("a pod of the API has started: %v", names)
	}
	o.Must(shared.ControlPlane().JoinLink())
	o.podsAreReady(node, "shop", "db")
}

// refusesOthers: nobody but the kubelet is answered.
func (o *operator) refusesOthers(node *kubeadm.Node) {
	o.Helper()
	// A certificate that names the node, of another CA.
	o.Shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout stranger.key " +
		"-out stranger.crt -subj /O=system:nodes/CN=system:node:" + node.Name() + " 2>&1\ncat stranger.key >> stranger.crt")
	o.Must(node.Install(filepath.Join(o.Directory, "stranger.crt"), "/var/tmp/stranger.pem"))
	for what, arguments := range map[string][]string{
		"nobody":               nil,
		"a made-up token":      {"-H", "Authorization: Bearer x"},
		"another certificate":  {"--cert", "/var/tmp/stranger.pem"},
		"a header of a proxy":  {"-H", "X-Remote-User: system:node:" + node.Name()},
		"a kubelet's imitator": {"-A", "kubelet/v1.37.1"},
	} {
		output, err := node.Run(o.Context(), "curl", append([]string{"-sk", "-w", "%{http_code}",
			"https://127.0.0.1:51003/api/v1/namespaces/alone/secrets/password"}, arguments...)...)
		if strings.Contains(output, "sesame") || (err == nil && !strings.HasSuffix(output, "401")) {
			o.Errorf("%s is answered %s", what, output)
		}
		if err != nil && what != "another certificate" { // that handshake fails
			o.Errorf("%s: %v", what, err)
		}
	}
}

// startsAllAlone: after a power cut without the cloud the pods answer with all that they had, and go on when it is
// back.
func (o *operator) startsAllAlone(node *kubeadm.Node) {
	o.Helper()
	pods, err := o.podsOfAlone(node)
	o.Must(err)
	before := o.filesOf(node, pods["shop"])
	time.Sleep(3 * time.Second) // the promise is for what was recorded 2 s before
	begin := o.powerCutWithoutCloud(node)
	o.Eventually("all pods answer without the cloud", func() error { return o.answering(node, "shop", "db") })
	if took := time.Since(begin); took > startsAgain {
		o.Errorf("that took %s", took)
	} else {
		o.Logf("all pods answer %.1f s after power is back", took.Seconds())
	}
	after := o.filesOf(node, pods["shop"])
	tokens := map[string]string{"token": after["token"], "vault": after["vault"]}
	if !sameButTokens(before, after) {
		o.Errorf("the containers have %v, and had %v", after, before)
	}
	kubelet, err := node.Run(o.Context(), "pgrep", "-x", "kubelet")
	o.Must(err)
	processes := o.processesOfPods(node)

	o.Must(shared.ControlPlane().JoinLink())
	begin = time.Now()
	o.podsAreReady(node, "shop", "db")
	o.Logf("kube-apiserver knows how they are %.1f s after the link is back", time.Since(begin).Seconds())
	again, err := node.Run(o.Context(), "pgrep", "-x", "kubelet")
	if err != nil || again != kubelet {
		o.Errorf("the kubelet has restarted: %q, then %q (%v)", kubelet, again, err)
	}
	if now := o.processesOfPods(node); now != processes {
		o.Errorf("containers have restarted with the return of the cloud: %q, then %q", processes, now)
	}
	for name, token := range tokens {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
		if name == "vault" {
			review.Spec.Audiences = []string{"vault"}
		}
		review, err := o.Client.AuthenticationV1().TokenReviews().Create(o.Context(), review,
			metav1.CreateOptions{})
		o.Must(err)
		if !review.Status.Authenticated {
			o.Errorf("kube-apiserver refuses the token %s: %s", name, review.Status.Error)
		}
	}
}

// startsAllOnline: after a power cut with the cloud all is as without lite-apiserver.
func (o *operator) startsAllOnline(node *kubeadm.Node) {
	o.Helper()
	o.Must(node.PowerCut())
	begin := time.Now()
	o.Must(node.PowerOn())
	o.Eventually("all pods answer", func() error { return o.answering(node, "shop", "db") })
	o.Logf("with the cloud all pods answer %.1f s after power is back", time.Since(begin).Seconds())
	o.podsAreReady(node, "shop", "db")
}

// staysGone: a pod that was removed is not started alone.
func (o *operator) staysGone(node *kubeadm.Node) {
	o.Helper()
	o.Shell("kubectl -n alone scale statefulset db --replicas=0 --timeout=1m\n" +
		"kubectl -n alone wait --for=delete pod/db-0 --timeout=1m")
	o.powerCutWithoutCloud(node)
	o.Eventually("the other pod answers without the cloud", func() error { return o.answering(node, "shop") })
	time.Sleep(10 * time.Second) // nothing else is to happen
	if err := o.answering(node, "shop"); err != nil {
		o.Error(err)
	}
	o.Must(shared.ControlPlane().JoinLink())
	o.podsAreReady(node, "shop")
}

// cutWhileRemoved removes the StatefulSet's pod, and cuts the power some time after its container has ended. Whatever
// the kubelet had confirmed by then, it is not given the pod again where kube-apiserver has it no more.
func (o *operator) cutWhileRemoved(node *kubeadm.Node, after time.Duration, round int) {
	o.Helper()
	pods, err := o.podsOfAlone(node)
	o.Must(err)
	db, shop := string(pods["db"].UID), string(pods["shop"].UID)
	watcher, err := o.Client.CoreV1().Pods("alone").Watch(o.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", pods["db"].Name).String()})
	o.Must(err)
	o.Must(o.Client.CoreV1().Pods("alone").Delete(o.Context(), pods["db"].Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](1)}))
	took := <-since(time.Now(), watcher, func(event watch.Event) bool {
		pod, ok := event.Object.(*corev1.Pod)
		return event.Type == watch.Deleted || ok && pod.Status.ContainerStatuses[0].State.Terminated != nil
	})
	time.Sleep(after)
	o.Must(node.PowerCut())
	o.Must(shared.ControlPlane().CutLink())
	o.Must(node.PowerOn())
	var given string
	o.Eventually("the kubelet is answered", func() (err error) {
		given, err = node.Run(o.Context(), "curl", "-sSf", "--cacert", liteDir+"/ca.crt", "--cert", kubeletCertificate,
			"https://127.0.0.1:51003/api/v1/pods?fieldSelector=spec.nodeName%3D"+node.Name())
		return err
	})
	there, err := shared.ControlPlane().Run(o.Context(), "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", "-n", "alone",
		"get", "pods", "-o", "jsonpath={.items[*].metadata.uid}")
	o.Must(err)
	known, risen := strings.Contains(there, db), strings.Contains(given, db)
	o.Logf("round %d: the container ended after %.1f s, the power was cut %.1f s later; kube-apiserver has the pod: %v, "+
		"the kubelet is given it: %v", round, took.Seconds(), after.Seconds(), known, risen)
	if (risen && !known) || !strings.Contains(given, shop) {
		o.Errorf("kube-apiserver has %s, and the kubelet is given %s", there, given)
	}
	o.Must(shared.ControlPlane().JoinLink())
	o.podsAreReady(node, "shop", "db")
}

// useLite starts lite-apiserver on a node, and leads the kubelet to it, as docs/autonomy.md says. What it returns ends
// that.
func (o *operator) useLite(node *kubeadm.Node) (end func()) {
	o.Helper()
	o.Must(node.Install(filepath.Join(shared.Programs, "lite-apiserver"), kubeadm.LiteProgram))
	o.Must(node.WriteFile(kubeadm.LiteConfig, "LITE_APISERVER_ARGS=\"--unsealed --file-cache-path="+liteDir+"\"\n"))
	o.Answers(node, "http://127.0.0.1:51009/readyz", http.StatusOK)
	o.Must(node.WriteFile(kubeadm.KubeletArguments, "KUBELET_EXTRA_ARGS=--kubeconfig="+liteDir+"/kubelet.conf\n"))
	o.restartKubelet(node)
	return func() {
		o.Must(node.WriteFile(kubeadm.KubeletArguments, ""))
		_, err := node.Run(o.Context(), "rm", kubeadm.LiteConfig)
		o.Must(err)
		o.restartKubelet(node)
		_, err = node.Run(o.Context(), "pkill", "lite-apiserver")
		o.Must(err)
		o.Eventually("the Node says nothing more of a start alone", func() error {
			found, err := o.Client.CoreV1().Nodes().Get(o.Context(), node.Name(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			if told := v1.StartsAlone(found); told != nil {
				return fmt.Errorf("it says %s: %s", told.Status, told.Message)
			}
			return nil
		})
	}
}

// powerCutWithoutCloud takes the cloud away from all nodes, and this node's power, and gives power back. It returns
// when that was.
func (o *operator) powerCutWithoutCloud(node *kubeadm.Node) time.Time {
	o.Helper()
	o.Must(shared.ControlPlane().CutLink())
	o.Must(node.PowerCut())
	o.Must(node.PowerOn())
	return time.Now()
}

func (o *operator) restartKubelet(node *kubeadm.Node) {
	o.Helper()
	before, err := node.Run(o.Context(), "pgrep", "-x", "kubelet")
	o.Must(err)
	_, err = node.Run(o.Context(), "pkill", "-x", "kubelet")
	o.Must(err)
	o.Eventually("the kubelet has restarted", func() error {
		now, err := node.Run(o.Context(), "pgrep", "-x", "kubelet")
		if err == nil && now == before {
			err = errors.New("it has not ended")
		}
		return err
	})
}

// podsAreReady waits until the pods of these workloads answer, and kube-apiserver says that the node and they are ready
// where they answer.
func (o *operator) podsAreReady(node *kubeadm.Node, apps ...string) {
	o.Helper()
	o.Eventually("the pods answer", func() error { return o.answering(node, apps...) })
	o.Eventually("kube-apiserver says so", func() error {
		pods, err := o.podsOfAlone(node)
		if err != nil {
			return err
		}
		answers := o.answers(node)
		for app, pod := range pods {
			if !kubeadm.Ready(pod) || answers[pod.Status.PodIP] != pod.Name {
				return fmt.Errorf("the pod of %s is %s at %s, and there answer %v", app, pod.Status.Phase, pod.Status.PodIP,
					answers)
			}
		}
		return shared.NodeReady(o.Context(), node.Name())
	})
}

// podsOfAlone are the pods of the namespace on the node, by their workload.
func (o *operator) podsOfAlone(node *kubeadm.Node) (map[string]*corev1.Pod, error) {
	list, err := o.listPods("alone", node.Name())
	if err != nil {
		return nil, err
	}
	found := map[string]*corev1.Pod{}
	for i, pod := range list {
		found[pod.Labels["app"]] = &list[i]
	}
	return found, nil
}

// answers are the names of the pods that answer on the node, by the addresses that its CNI has given.
func (o *operator) answers(node *kubeadm.Node) map[string]string {
	given, err := node.Run(o.Context(), "ls", "/var/lib/cni/networks/pods")
	found := map[string]string{}
	if err != nil {
		return found // no pod has run yet
	}
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, address := range strings.Fields(given) {
		if net.ParseIP(address) == nil {
			continue
		}
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(o.Context(), time.Second)
			defer cancel()
			reply, err := node.Get(ctx, "http://"+address+":8080/hostname")
			if err != nil {
				return // it was given before the loss of power, or the pod has not started
			}
			mu.Lock()
			defer mu.Unlock()
			found[address] = reply.Body
		})
	}
	asking.Wait()
	return found
}

// answering is nil if the pods of these workloads, and no others, answer on the node.
func (o *operator) answering(node *kubeadm.Node, apps ...string) error {
	answers := slices.Sorted(maps.Values(o.answers(node)))
	same := len(answers) == len(apps)
	for _, app := range apps {
		same = same && slices.ContainsFunc(answers, func(pod string) bool { return strings.HasPrefix(pod, app+"-") })
	}
	if !same {
		return fmt.Errorf("there answer %v", answers)
	}
	return nil
}

// filesOf are what the containers of this pod are given.
func (o *operator) filesOf(node *kubeadm.Node, shop *corev1.Pod) map[string]string {
	o.Helper()
	found := map[string]string{}
	for name, pattern := range map[string]string{
		"color": "kubernetes.io~configmap/settings/color", "word": "kubernetes.io~secret/password/word",
		"token": "kubernetes.io~projected/kube-api-access-*/token", "vault": "kubernetes.io~projected/vault/token",
		"ca": "kubernetes.io~projected/kube-api-access-*/ca.crt",
	} {
		content, err := node.Run(o.Context(), "sh", "-c",
			"cat /var/lib/kubelet/pods/"+string(shop.UID)+"/volumes/"+pattern)
		o.Must(err)
		found[name] = content
	}
	environment, err := node.Run(o.Context(), "sh", "-c",
		"for p in $(ps -e -o pid=,args= | awk '$2 ~ /echo$/ {print $1}'); do tr '\\0' '\\n' </proc/$p/environ; done | "+
			"grep -E '^(COLOR|WORD|DB_|KUBERNETES_SERVICE_HOST)' | sort -u")
	o.Must(err)
	if !strings.Contains(environment, "COLOR=green\n") || !strings.Contains(environment, "WORD=sesame\n") {
		o.Errorf("the containers' environment is %q", environment)
	}
	found["environment"] = environment
	return found
}

// sameButTokens compares what containers are given. Each token is one of several that kube-apiserver has given.
func sameButTokens(before, after map[string]string) bool {
	return maps.EqualFunc(before, after, func(x, y string) bool { return x == y || (isToken(x) && isToken(y)) })
}

// isToken reports whether this is a JSON Web Token.
func isToken(content string) bool {
	return strings.HasPrefix(content, "ey") && strings.Count(content, ".") == 2
}

// processesOfPods are the numbers of the processes of the node's pods.
func (o *operator) processesOfPods(node *kubeadm.Node) string {
	o.Helper()
	output, err := node.Run(o.Context(), "sh", "-c", "ps -e -o pid=,args= | awk '$2 ~ /echo$/ {print $1}'")
	o.Must(err)
	return output
}
