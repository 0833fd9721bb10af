package gridcontroller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
)

// jobName is the name of the Job of a site's check: another one for each attempt, workload, and edit of the check.
func (p *assigned) jobName(site string, attempt *metav1.Time, check *v1.Check) string {
	live := cmp.Or(p.child(site), &liveChild{})
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s\n%s\n%s", p.owner.UID, site, p.update.Revision,
		attempt.UTC().Format(time.RFC3339), live.uid, rollout.CheckHash(check)))
	// A shortened name may end with a character that is not allowed there.
	of := strings.TrimRight(p.owner.Name[:min(len(p.owner.Name), 40)], "-.")
	return of + "-check-" + hex.EncodeToString(sum[:5])
}

// jobs returns the Jobs of the grid's checks, by name. They are listed at most once per askPause.
func (p *pass) jobs(ctx context.Context) (map[string]*batchv1.Job, error) {
	m := p.memory
	if m.jobs != nil && p.clock.Since(m.jobsAt) < askPause {
		return m.jobs, nil
	}
	list := &batchv1.JobList{}
	err := p.apiReader.List(ctx, list, client.InNamespace(p.owner.Namespace),
		client.MatchingLabels{v1.LabelCheck: p.owner.Name})
	if err != nil {
		return nil, fmt.Errorf("listing the Jobs: %w", err)
	}
	m.jobs, m.jobsAt = map[string]*batchv1.Job{}, p.clock.Now()
	for i := range list.Items {
		m.jobs[list.Items[i].Name] = &list.Items[i]
	}
	return m.jobs, nil
}

// check runs the check of a site, if it does not run yet, and returns its result.
func (p *assigned) check(ctx context.Context, site string, attempt *metav1.Time) *rollout.CheckResult {
	result, err := p.runCheck(ctx, site, attempt)
	switch {
	case err == nil:
		return result
	case gridchild.ErrorFrom(err).Reason == v1.ReasonInvalidTemplate:
		return &rollout.CheckResult{Failed: true, Message: err.Error()}
	}
	return &rollout.CheckResult{Message: "the check waits: " + gridchild.Shorten(err.Error())}
}

func (p *assigned) runCheck(ctx context.Context, site string, attempt *metav1.Time) (*rollout.CheckResult, error) {
	check := p.spec.Rollout.Waves[p.waves.Of(site)].Check
	name := p.jobName(site, attempt, check)
	runs := &rollout.CheckResult{Runs: true, Message: "Job " + name + " runs"}
	jobs, err := p.jobs(ctx)
	if err != nil {
		return nil, err
	}
	job := jobs[name]
	switch {
	case job == nil:
		return runs, p.startCheck(ctx, site, name, check)
	case !metav1.IsControlledBy(job, p.grid):
		return nil, fmt.Errorf("the name of Job %s belongs to somebody else; delete it", name)
	case job.DeletionTimestamp != nil:
		return nil, nil //nolint:nilnil // it will be recreated
	}
	switch end := endOf(job); end.Type {
	case "":
		return runs, nil
	case batchv1.JobComplete:
		return &rollout.CheckResult{Passed: true}, nil
	default:
		if void, err := p.disrupted(ctx, site, job); err != nil {
			return nil, err
		} else if void { // the failure is not the site's
			delete(jobs, name)
			return &rollout.CheckResult{Runs: true, Message: "the check runs again"}, p.deleteObject(ctx, job)
		}
		return &rollout.CheckResult{Failed: true, Message: gridchild.Shorten(fmt.Sprintf(
			"%s: %s; see kubectl grid logs, or kubectl logs -n %s job/%s", end.Reason, end.Message, job.Namespace,
			job.Name))}, nil
	}
}

// endOf returns the condition with which a Job has ended. It is empty while the Job runs.
func endOf(job *batchv1.Job) (end batchv1.JobCondition) {
	for _, c := range job.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			end = c
		}
	}
	return end
}

// removePassedJobs removes the Jobs of checks that have succeeded, once the status shows that.
func (p *assigned) removePassedJobs(ctx context.Context) {
	written := ptr.Deref(p.status.Rollout, v1.RolloutStatus{}).Sites
	for name, job := range p.memory.jobs {
		unchecked := func(u v1.RolloutSite) bool { return u.Name == job.Labels[v1.LabelGridSite] && !u.Checked }
		switch {
		case endOf(job).Type != batchv1.JobComplete, !metav1.IsControlledBy(job, p.grid):
		case slices.ContainsFunc(written, unchecked):
			p.requeueAt(p.clock.Now().Add(askPause))
		default:
			if err := p.deleteObject(ctx, job); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot remove the Job of a check", "job", name)
			}
			delete(p.memory.jobs, name)
		}
	}
}

func (p *assigned) startCheck(ctx context.Context, site, name string, check *v1.Check) error {
	var spec batchv1.JobSpec
	if err := json.Unmarshal(check.Template.Raw, &spec); err != nil {
		return gridchild.Errorf(v1.ReasonInvalidTemplate, "the check's template is not the spec of a Job: %v", err)
	}
	pod, own := &spec.Template, labels.Set{v1.LabelCheck: p.owner.Name, v1.LabelGridSite: site}
	pod.Labels = labels.Merge(pod.Labels, own)
	template, err := p.update.Of(site)
	selector, workload, unreadable := gridchild.PodSpec(template)
	if err = cmp.Or(err, unreadable); err != nil {
		return err
	}
	if err := p.checkLabels(ctx, selector, labels.Set(pod.Labels)); err != nil {
		return err
	}
	if pod.Spec.Tolerations == nil { // it has to run where the site's pods do
		pod.Spec.Tolerations = workload.Tolerations
	}
	pod.Spec.NodeSelector = labels.Merge(pod.Spec.NodeSelector, labels.Set{p.owner.Key: site})
	if pod.Spec.RestartPolicy == "" || pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	seconds := int64(ptr.Deref(check.DeadlineSeconds, rollout.CheckSeconds))
	spec.ActiveDeadlineSeconds = new(min(seconds, ptr.Deref(spec.ActiveDeadlineSeconds, seconds)))
	spec.TTLSecondsAfterFinished = ptr.To[int32](24 * 60 * 60) // a failed one is kept for its logs
	spec.Selector, spec.ManualSelector, spec.Suspend = nil, nil, nil
	by := metav1.NewControllerRef(p.grid, v1.GroupVersion.WithKind(p.Kind))
	job := &batchv1.Job{Spec: spec, ObjectMeta: metav1.ObjectMeta{
		Namespace: p.owner.Namespace, Name: name, Labels: own, OwnerReferences: []metav1.OwnerReference{*by},
	}}
	err = p.writer.Create(ctx, job)
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		return gridchild.Errorf(v1.ReasonInvalidTemplate, "the API server refuses the check: %s",
			gridchild.Shorten(err.Error()))
	} else if err == nil {
		p.memory.jobs[name] = job
	}
	return err // a quota, a missing permission, or a former Job that is about to be deleted: it waits
}

// checkLabels refuses labels of a check's pods that the site's workload or a Service selects.
func (p *pass) checkLabels(ctx context.Context, selector labels.Selector, of labels.Set) error {
	if selector.Matches(of) {
		return gridchild.Errorf(v1.ReasonInvalidTemplate,
			"the check's pods have labels that the grid's selector %s matches; give them others", selector)
	}
	services := &corev1.ServiceList{}
	if err := p.apiReader.List(ctx, services, client.InNamespace(p.owner.Namespace)); err != nil {
		return fmt.Errorf("listing the Services: %w", err)
	}
	for i := range services.Items {
		service := &services.Items[i]
		if len(service.Spec.Selector) > 0 && labels.SelectorFromSet(service.Spec.Selector).Matches(of) {
			return gridchild.Errorf(v1.ReasonInvalidTemplate,
				"the check's pods have labels that Service %s selects; give them others", service.Name)
		}
	}
	return nil
}

// disrupted reports whether a Job has failed because something evicted its pod, or the pod's node fell silent.
func (p *pass) disrupted(ctx context.Context, site string, job *batchv1.Job) (bool, error) {
	pods := &corev1.PodList{}
	err := p.apiReader.List(ctx, pods, client.InNamespace(job.Namespace),
		client.MatchingLabels{batchv1.JobNameLabel: job.Name})
	if err != nil {
		return false, fmt.Errorf("listing the pods of Job %s: %w", job.Name, err)
	}
	silent, meanwhile := map[string]bool{}, false
	for _, node := range p.sites[site].nodes {
		lost, since := isSilent(node)
		changed := job.Status.StartTime != nil && since.After(job.Status.StartTime.Time)
		silent[node.Name], meanwhile = lost || changed, meanwhile || changed
	}
	if len(pods.Items) == 0 { // a node that is back deletes the pod of a Job that has ended
		return meanwhile, nil
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		evicted := func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
		}
		return silent[pod.Spec.NodeName] || slices.ContainsFunc(pod.Status.Conditions, evicted)
	}), nil
}
