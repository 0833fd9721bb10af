package kubeadm_test

import (
	"fmt"
	"strings"
	"time"

	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/application-grid/application-grid/test/kubeadm"
)

const year = 365 * 24 * time.Hour

// wrongClocks cuts the power of a node that comes back without the cloud, and with the time lost, or with a time at
// which a token or the kubelet's certificate has expired.
func (o *operator) wrongClocks(node *kubeadm.Node) {
	o.Helper()
	pods, err := o.podsOfAlone(node)
	o.Must(err)
	all, before := o.readyPods(node), o.filesOf(node, pods["shop"])

	begin := o.startAt(node, -5*year)
	o.Eventually("all pods answer 5 years before", func() error { return o.answering(node, "shop", "db") })
	o.Logf("5 years behind all pods answer %.1f s after power is back", time.Since(begin).Seconds())
	day := time.Now().Add(-5 * year).Format("0102")
	if _, err := node.Run(o.Context(), "grep", "-cE", "^[IWE]"+day, "/var/log/kubelet.log"); err != nil {
		o.Errorf("the kubelet logs nothing on the day %s: %v", day, err)
	}
	if after := o.filesOf(node, pods["shop"]); !sameButTokens(before, after) {
		o.Errorf("the containers have %v, and had %v", after, before)
	}
	// The kubelet takes the dead containers for the last ones: their times are later.
	o.Eventually("it is named that they are not ready", func() error {
		return o.liteSays(node, "shop", "db", "which is still to come")
	})
	processes := o.processesOfPods(node)
	o.removeDeadContainers(node)
	o.Eventually("the kubelet calls all pods ready", func() error { return o.kubeletHas(node, all) })
	if now := o.processesOfPods(node); now != processes {
		o.Errorf("containers have restarted: %q, then %q", processes, now)
	}

	// The token of another audience is valid for 2 hours, those for kube-apiserver for a year.
	logged, err := node.Run(o.Context(), "stat", "-c", "%s", "/var/log/kubelet.log")
	o.Must(err)
	o.startAt(node, 3*time.Hour)
	o.Eventually("the pod that needs no such token answers", func() error { return o.answering(node, "db") })
	o.Eventually("the token is named", func() error { return o.liteSays(node, "shop", "has expired at") })
	o.Eventually("the kubelet is refused the token", func() error {
		_, err := node.Run(o.Context(), "sh", "-c", "tail -c +"+strings.TrimSpace(logged)+" /var/log/kubelet.log | "+
			"grep 'MountVolume.SetUp failed for volume.*vault'")
		return err
	})
	if err := o.answering(node, "db"); err != nil {
		o.Error(err)
	}

	o.startAt(node, year+24*time.Hour)
	o.Eventually("the certificate is named", func() error {
		return o.liteSays(node, "the kubelet's certificate has expired at")
	})
	output, err := node.Run(o.Context(), "curl", "-sS", "--cacert", liteDir+"/ca.crt", "--cert", kubeletCertificate,
		"https://127.0.0.1:51003/api/v1/pods?fieldSelector=spec.nodeName%3D"+node.Name())
	if err == nil || strings.Contains(output, "PodList") {
		o.Errorf("who has the expired certificate is answered %s", output)
	}
	o.Logf("with the expired certificate: %s", output)

	o.Must(node.SetClock(0))
	o.Must(node.PowerCut())
	o.Must(shared.ControlPlane().JoinLink())
	o.Must(node.PowerOn())
	o.Eventually("all pods answer", func() error { return o.answering(node, "shop", "db") })
	o.removeDeadContainers(node)
	o.podsAreReady(node, "shop", "db")
}

// removeDeadContainers does what crictl rm --all does.
func (o *operator) removeDeadContainers(node *kubeadm.Node) {
	o.Helper()
	connection, err := node.Runtime()
	o.Must(err)
	defer connection.Close()
	runtime := runtimev1.NewRuntimeServiceClient(connection)
	list, err := runtime.ListContainers(o.Context(), &runtimev1.ListContainersRequest{})
	o.Must(err)
	for _, container := range list.GetContainers() {
		if container.GetState() == runtimev1.ContainerState_CONTAINER_EXITED {
			request := &runtimev1.RemoveContainerRequest{ContainerId: container.GetId()}
			_, err := runtime.RemoveContainer(o.Context(), request)
			o.Must(err)
		}
	}
}

// startAt cuts the cloud off and the node's power, and gives power back with a clock that is so much ahead, or behind.
func (o *operator) startAt(node *kubeadm.Node, ahead time.Duration) time.Time {
	o.Helper()
	o.Must(node.SetClock(ahead))
	return o.powerCutWithoutCloud(node)
}

// liteSays is nil if lite-apiserver's /readyz says all of this.
func (o *operator) liteSays(node *kubeadm.Node, parts ...string) error {
	reply, err := node.Get(o.Context(), "http://127.0.0.1:51009/readyz")
	if err != nil {
		return err
	}
	for _, part := range parts {
		if !strings.Contains(reply.Body, part) {
			return fmt.Errorf("it says %s", reply.Body)
		}
	}
	return nil
}
