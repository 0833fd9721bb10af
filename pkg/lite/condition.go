package lite

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const (
	// tellInterval is the time between two checks of the Node's condition.
	tellInterval = 30 * time.Second
	// heartbeat is how old the condition in the cloud may be.
	heartbeat = 10 * time.Minute
	// askedWithin is how old the kubelet's last request may be. The kubelet renews its Lease every 10 s.
	askedWithin = 2 * time.Minute
	// messageLimit is how many bytes the condition's message may have.
	messageLimit = 1024
)

// condition returns the Node's condition about a start without kube-apiserver.
func (s *Server) condition() corev1.NodeCondition {
	e := s.explained.Load()
	c := corev1.NodeCondition{Type: v1.NodeStartsAlone, Status: corev1.ConditionTrue, Reason: "AllPodsWouldStart",
		Message: e.Summary()}
	switch {
	case len(e.Nothing()) > 0:
		c.Status, c.Reason = corev1.ConditionFalse, "NoPodWouldStart"
	case len(e.Stuck()) > 0:
		c.Status, c.Reason = corev1.ConditionFalse, "SomePodsWouldNotStart"
	case time.Since(time.Unix(s.kubeletSeenAt.Load(), 0)) > askedWithin:
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "KubeletElsewhere",
			"the kubelet does not ask lite-apiserver: does its --kubeconfig name it?"
	}
	if len(c.Message) > messageLimit {
		c.Message = strings.ToValidUTF8(c.Message[:messageLimit-len("…")], "") + "…"
	}
	return c
}

// updateCondition keeps the Node's condition up to date until ctx is done, and then removes it, because it would become
// wrong.
func (s *Server) updateCondition(ctx context.Context) {
	logger := klog.FromContext(ctx)
	_ = wait.PollUntilContextCancel(ctx, tellInterval, false, func(ctx context.Context) (bool, error) {
		now, told := s.condition(), ptr.Deref(v1.StartsAlone(s.store.nodeObject()), corev1.NodeCondition{})
		if s.link.AwayUntil() != nil || (now.Status == told.Status && now.Reason == told.Reason &&
			now.Message == told.Message && time.Since(told.LastHeartbeatTime.Time) < heartbeat) {
			return false, nil
		}
		now.LastHeartbeatTime, now.LastTransitionTime = metav1.Now(), told.LastTransitionTime
		if now.Status != told.Status {
			now.LastTransitionTime = now.LastHeartbeatTime
		}
		if err := s.follower.patchStatus(ctx, tokenTimeout, now); err != nil {
			logger.V(2).Info("Cannot update the Node's condition, trying again", "err", err)
		}
		return false, nil
	})
	if s.link.AwayUntil() != nil {
		return
	}
	nothing := map[string]string{"type": v1.NodeStartsAlone, "$patch": "delete"}
	if err := s.follower.patchStatus(context.WithoutCancel(ctx), gracePeriod, nothing); err != nil {
		logger.Error(err, "Cannot remove the Node's condition, which may become wrong", "condition", v1.NodeStartsAlone)
	}
}

// patchStatus applies a strategic merge patch to a condition of the Node.
func (f *follower) patchStatus(ctx context.Context, within time.Duration, condition any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return err
	}
	return f.api.Patch(types.StrategicMergePatchType).Timeout(within).MaxRetries(0).Body(patch).
		AbsPath("/api/v1/nodes", f.store.node, "status").Do(ctx).Error()
}
