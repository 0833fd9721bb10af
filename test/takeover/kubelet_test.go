package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// lookEvery is the time between two looks at the pods.
	lookEvery = 50 * time.Millisecond
	// firstBackoff and lastBackoff are the pauses before a container that ended is started again.
	firstBackoff, lastBackoff = time.Second, 8 * time.Second
	// grace is what a container has to end.
	grace = 10 * time.Second
	// serviceAccountDirectory is where a pod finds its credentials.
	serviceAccountDirectory = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// kubelets start what the pods say whose images they have, on all nodes. What a hostPath leads to is a directory of the
// node's own, which outlives the pods.
type kubelets struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	images  map[string]*image
	dir     string
	ca      []byte
	stop    context.CancelFunc
	stopped chan struct{}

	mu sync.Mutex
	// pods are those that run, by UID; guarded by mu.
	pods map[types.UID]*runningPod
	// exits are what containers ended with; guarded by mu.
	exits []string
}

// runningPod is a pod with its container.
type runningPod struct {
	pod  *corev1.Pod
	dir  string
	end  context.CancelFunc
	done chan struct{}
}

func startKubelets(t *testing.T, c *cluster.Cluster, images map[string]*image) *kubelets {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	k := &kubelets{
		cluster: c, client: c.Client(), images: images, dir: t.TempDir(), ca: c.RESTConfig().CAData,
		stop: cancel, stopped: make(chan struct{}), pods: map[types.UID]*runningPod{},
	}
	if len(k.ca) == 0 {
		var err error
		if k.ca, err = os.ReadFile(c.RESTConfig().CAFile); err != nil {
			t.Fatal(err)
		}
	}
	go k.run(ctx)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(k.tell())
		}
		cancel()
		<-k.stopped
	})
	return k
}

// tell is what containers ended with, and what those say that run.
func (k *kubelets) tell() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	told := "containers that ended:\n" + strings.Join(k.exits, "\n")
	for _, p := range k.pods {
		log, _ := os.ReadFile(filepath.Join(p.dir, "log")) // there is none if it was not started
		told += fmt.Sprintf("\n%s on %s says: %s", p.pod.Name, p.pod.Spec.NodeName, tail(log))
	}
	return told
}

// run looks at the pods until ctx is done, and ends all containers then.
func (k *kubelets) run(ctx context.Context) {
	defer close(k.stopped)
	for ctx.Err() == nil {
		if pods, err := k.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
			k.look(ctx, pods.Items)
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
	k.mu.Lock()
	pods := k.pods
	k.mu.Unlock()
	for _, p := range pods {
		<-p.done
	}
}

func (k *kubelets) look(ctx context.Context, pods []corev1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	wanted := map[types.UID]bool{}
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || k.images[pod.Spec.Containers[0].Image] == nil {
			continue
		}
		wanted[pod.UID] = true
		if k.pods[pod.UID] == nil {
			ctx, cancel := context.WithCancel(ctx)
			p := &runningPod{pod: pod, dir: filepath.Join(k.dir, "pods", string(pod.UID)), end: cancel,
				done: make(chan struct{})}
			k.pods[pod.UID] = p
			go k.keep(ctx, p)
		}
	}
	for uid, p := range k.pods {
		select {
		case <-p.done:
			delete(k.pods, uid)
			continue
		default:
		}
		if !wanted[uid] {
			p.end()
		}
	}
}

// keep starts the pod's container, again and again, until ctx is done.
func (k *kubelets) keep(ctx context.Context, p *runningPod) {
	defer close(p.done)
	name := p.pod.Name + " on " + p.pod.Spec.NodeName
	for backoff := firstBackoff; ctx.Err() == nil; backoff = min(2*backoff, lastBackoff) {
		err := k.runOnce(ctx, p)
		if ctx.Err() != nil {
			break
		}
		log, _ := os.ReadFile(filepath.Join(p.dir, "log")) // there is none if it was not started
		k.mu.Lock()
		k.exits = append(k.exits, fmt.Sprintf("%s %s: %v: %s", time.Now().Format("15:04:05.000"), name, err, tail(log)))
		k.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
	}
	_ = os.RemoveAll(p.dir) // a directory for the test, which goes anyway
}

// tail is the end of a log.
func tail(log []byte) string { return string(log[max(0, len(log)-2000):]) }

// runOnce runs the container until it ends, or ends it when ctx is done.
func (k *kubelets) runOnce(ctx context.Context, p *runningPod) error {
	c, err := k.prepare(ctx, p)
	if err != nil {
		return err
	}
	node, err := k.cluster.Node(p.pod.Spec.NodeName)
	if err != nil {
		return err
	}
	description, err := json.Marshal(c)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{containerVariable + "=" + string(description)}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if err := node.Start(cmd); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			err = errors.New("it ended")
		}
		return err
	case <-ctx.Done():
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it fails only if the process has ended
	select {
	case <-ended:
	case <-time.After(grace):
		_ = cmd.Process.Kill()
		<-ended
	}
	return nil
}

// prepare makes the container's files and volumes.
func (k *kubelets) prepare(ctx context.Context, p *runningPod) (*container, error) {
	spec := p.pod.Spec.Containers[0]
	from := k.images[spec.Image]
	c := &container{Root: filepath.Join(p.dir, "root"), UID: from.uid, GID: from.gid}
	if err := os.RemoveAll(c.Root); err != nil {
		return nil, err
	}
	if err := from.unpack(c.Root); err != nil {
		return nil, err
	}
	k.applySecurity(c, p.pod, spec)
	var err error
	if c.Env, err = k.environment(ctx, p.pod, spec); err != nil {
		return nil, err
	}
	command := spec.Command
	if len(command) == 0 {
		command = from.entrypoint
	}
	for _, word := range append(append([]string{}, command...), spec.Args...) {
		for _, variable := range c.Env {
			name, value, _ := strings.Cut(variable, "=")
			word = strings.ReplaceAll(word, "$("+name+")", value)
		}
		c.Command = append(c.Command, word)
	}
	if c.Mounts, err = k.volumes(ctx, p, spec); err != nil {
		return nil, err
	}
	return c, k.makeMountPoints(c)
}

// makeMountPoints makes the directories that the mounts want while the root may be written.
func (k *kubelets) makeMountPoints(c *container) error {
	for _, m := range c.Mounts {
		if err := os.MkdirAll(filepath.Join(c.Root, m.To), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (k *kubelets) applySecurity(c *container, pod *corev1.Pod, spec corev1.Container) {
	if of := pod.Spec.SecurityContext; of != nil {
		if of.RunAsUser != nil {
			c.UID = int(*of.RunAsUser)
		}
		if of.RunAsGroup != nil {
			c.GID = int(*of.RunAsGroup)
		}
	}
	if of := spec.SecurityContext; of != nil {
		c.ReadOnlyRoot = of.ReadOnlyRootFilesystem != nil && *of.ReadOnlyRootFilesystem
		c.NoCapabilities = of.Capabilities != nil && len(of.Capabilities.Drop) == 1 && of.Capabilities.Drop[0] == "ALL"
	}
}

func (k *kubelets) environment(ctx context.Context, pod *corev1.Pod, spec corev1.Container) ([]string, error) {
	service, err := k.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	environment := []string{"KUBERNETES_SERVICE_HOST=" + service.Spec.ClusterIP, "KUBERNETES_SERVICE_PORT=443"}
	for _, e := range spec.Env {
		switch {
		case e.ValueFrom == nil:
			environment = append(environment, e.Name+"="+e.Value)
		case e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			environment = append(environment, e.Name+"="+pod.Spec.NodeName)
		default:
			return nil, fmt.Errorf("pod %s: the variable %s is of a kind that is not known here", pod.Name, e.Name)
		}
	}
	return environment, nil
}

// volumes are the pod's, and the directory with its credentials.
func (k *kubelets) volumes(ctx context.Context, p *runningPod, spec corev1.Container) ([]mount, error) {
	at := map[string]corev1.VolumeMount{}
	for _, m := range spec.VolumeMounts {
		at[m.Name] = m
	}
	var mounts []mount
	for _, volume := range p.pod.Spec.Volumes {
		m, ok := at[volume.Name]
		if !ok || m.MountPath == serviceAccountDirectory {
			continue
		}
		from, readOnly := filepath.Join(p.dir, "volumes", volume.Name), m.ReadOnly
		var err error
		switch {
		case volume.EmptyDir != nil:
			if err = os.MkdirAll(from, 0o755); err == nil {
				err = os.Chmod(from, 0o777) // as the kubelet's
			}
		case volume.HostPath != nil:
			from = k.hostPath(p.pod.Spec.NodeName, volume.HostPath.Path)
			err = os.MkdirAll(from, 0o755)
		case volume.ConfigMap != nil:
			readOnly = true // to everybody
			err = k.writeConfigMap(ctx, p.pod.Namespace, volume.ConfigMap, from)
		default:
			err = fmt.Errorf("pod %s: the volume %s is of a kind that is not known here", p.pod.Name, volume.Name)
		}
		if err != nil {
			return nil, err
		}
		mounts = append(mounts, mount{From: from, To: m.MountPath, ReadOnly: readOnly})
	}
	from := filepath.Join(p.dir, "volumes", "credentials")
	if err := k.writeCredentials(ctx, p.pod, from); err != nil {
		return nil, err
	}
	return append(mounts, mount{From: from, To: serviceAccountDirectory, ReadOnly: true}), nil
}

// hostPath is where a path of a node is on this machine.
func (k *kubelets) hostPath(node, path string) string {
	return filepath.Join(k.dir, "nodes", node, path)
}

// volumeOf is where the volume of a pod is on this machine.
func (k *kubelets) volumeOf(pod *corev1.Pod, volume string) string {
	return filepath.Join(k.dir, "pods", string(pod.UID), "volumes", volume)
}

func (k *kubelets) writeConfigMap(ctx context.Context, namespace string, source *corev1.ConfigMapVolumeSource,
	to string) error {
	configMap, err := k.client.CoreV1().ConfigMaps(namespace).Get(ctx, source.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	files := map[string]string{}
	for key, content := range configMap.Data {
		files[key] = content
	}
	if len(source.Items) > 0 {
		files = map[string]string{}
		for _, item := range source.Items {
			content, ok := configMap.Data[item.Key]
			if !ok {
				return fmt.Errorf("ConfigMap %s has no %s", source.Name, item.Key)
			}
			files[item.Path] = content
		}
	}
	return writeFiles(to, files)
}

// writeCredentials writes what a pod is given of its ServiceAccount.
func (k *kubelets) writeCredentials(ctx context.Context, pod *corev1.Pod, to string) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name,
			UID: pod.UID},
	}}
	answer, err := k.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName,
		request, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return writeFiles(to, map[string]string{"token": answer.Status.Token, "ca.crt": string(k.ca),
		"namespace": pod.Namespace})
}

func writeFiles(directory string, files map[string]string) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}
