package install

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// resumed is the annotation of who resumes.
const resumed = `"superedge.io/resumed":"2030-01-01T00:00:00Z"`

// approvedBy is the annotation of who approves, after another one.
func approvedBy(user string) string { return `,"superedge.io/approved-by":"` + user + `"` }

// edits is a patch of annotations.
func edits(annotations string) string { return `{"metadata":{"annotations":{` + annotations + `}}}` }

// approvals are patches of one grid, in this order; refused is a part of the message, "" if the patch is allowed.
var approvals = []struct {
	what, user, patch, refused string
}{
	// Who may edit changes what is carried out, and holds it.
	{"jane changes the template", "jane", `{"spec":{"template":{"replicas":2}}}`, ""},
	{"jane pauses", "jane", `{"spec":{"rollout":{"paused":true}}}`, ""},
	{"jane ends the pause", "jane", `{"spec":{"rollout":{"paused":null}}}`, ""},
	{"jane annotates", "jane", edits(`"a":"b"`), ""},
	// Who may not approve does not, with and without a name.
	{"jane approves", "jane", edits(`"superedge.io/approved":"demo-2/canary/1"`), "jane may not approve: superedge.io/approved needs the verb approve on deploymentgrids.superedge.io"},
	{"jane approves, signed", "jane", edits(`"superedge.io/approved":"demo-2/canary/1"` + approvedBy("jane")), "jane may not approve"},
	{"jane approves as ann", "jane", edits(`"superedge.io/approved":"demo-2/canary/1"` + approvedBy("ann")), "jane may not approve"},
	{"jane approves a removal", "jane", edits(`"superedge.io/approve-removal":"x"` + approvedBy("jane")), "superedge.io/approve-removal"},
	{"jane resumes", "jane", edits(resumed + approvedBy("jane")), "superedge.io/resumed"},
	{"jane skips", "jane", edits(`"superedge.io/at-once":"demo-2/3"` + approvedBy("jane")), "superedge.io/at-once"},
	{"jane skips as a revision of a similar name", "jane", edits(`"superedge.io/at-once":"demo-12/3"` + approvedBy("jane")), "superedge.io/at-once"},
	{"jane goes back", "jane", edits(`"superedge.io/at-once":"demo-1/3"`), ""},
	{"jane goes back later", "jane", edits(`"superedge.io/at-once":"demo-1/4"` + approvedBy("jane")), ""},
	{"jane says that ann has skipped", "jane", edits(`"superedge.io/at-once":"demo-1/5"` + approvedBy("ann")), "superedge.io/approved-by must be jane"},
	{"jane takes it away", "jane", edits(`"superedge.io/at-once":null,"superedge.io/approved-by":null`), ""},
	{"jane ends the waves", "jane", `{"spec":{"rollout":null}}`, "spec.rollout or spec.removal"},
	{"jane ends one wave", "jane", `{"spec":{"rollout":{"waves":[{"name":"rest"}]}}}`, "spec.rollout or spec.removal"},
	{"jane shortens a wave, and pauses", "jane", `{"spec":{"rollout":{"paused":true,"waves":[{"name":"canary","sites":{"names":["lab"]}},{"name":"rest"}]}}}`, "spec.rollout or spec.removal"},
	{"jane adds a failure", "jane", `{"spec":{"rollout":{"maxFailures":1}}}`, "spec.rollout or spec.removal"},
	{"jane lets more be removed", "jane", `{"spec":{"removal":{"maxSites":"100%"}}}`, "spec.rollout or spec.removal"},
	{"jane changes the waves and approves", "jane", `{"metadata":{"annotations":{` + resumed + `}},"spec":{"rollout":null}}`, "superedge.io/resumed, spec.rollout or spec.removal needs"},
	// Who may approve does, in their own name.
	{"ann approves", "ann", edits(`"superedge.io/approved":"demo-2/canary/1"` + approvedBy("ann")), ""},
	{"ann approves once more, under the name that is there", "ann", edits(`"superedge.io/approved":"demo-2/canary/2"`), ""},
	{"ann approves as jane", "ann", edits(`"superedge.io/approved":"demo-2/canary/3"` + approvedBy("jane")), "superedge.io/approved-by must be ann, who sets it with superedge.io/approved"},
	{"jane says that she has approved", "jane", edits(approvedBy("jane")[1:]), ""},
	{"jane says that ann has approved", "jane", edits(approvedBy("ann")[1:]), "superedge.io/approved-by must be jane"},
	{"ann approves, and jane's name is there", "ann", edits(`"superedge.io/approved":"demo-2/canary/4"`), "superedge.io/approved-by must be ann"},
	{"ann resumes", "ann", edits(resumed + approvedBy("ann")), ""},
	{"ann approves a removal", "ann", edits(`"superedge.io/approve-removal":"x"` + approvedBy("ann")), ""},
	{"ann skips", "ann", edits(`"superedge.io/at-once":"demo-2/5"` + approvedBy("ann")), ""},
	{"jane skips longer", "jane", edits(`"superedge.io/at-once":"demo-2/6"` + approvedBy("jane")), "superedge.io/at-once"},
	{"jane edits beside what ann has approved", "jane", `{"spec":{"template":{"replicas":3}}}`, ""},
	{"ann changes the waves", "ann", `{"spec":{"rollout":{"maxFailures":1}}}`, ""},
	{"ann changes the removal", "ann", `{"spec":{"removal":{"maxSites":"100%"}}}`, ""},
	// The controller removes unused templates, and tells at-once the generation that this makes. It approves
	// nothing.
	{"the controller's write", "controller", `{"metadata":{"annotations":{"superedge.io/at-once":"demo-2/7"}},"spec":{"templatePool":{"b":null}}}`, ""},
	{"the controller skips", "controller", edits(`"superedge.io/at-once":"demo-3/8"`), "superedge.io/at-once"},
	{"the controller approves", "controller", edits(`"superedge.io/approved":"demo-3/canary/8"`), "superedge.io/approved"},
	// Taking away asks nobody, and every verb is this one too.
	{"jane takes all away", "jane", edits(`"superedge.io/approved":null,"superedge.io/at-once":null,"superedge.io/resumed":null,"superedge.io/approve-removal":null`), ""},
	{"root approves", "root", edits(`"superedge.io/approved":"demo-2/canary/9"` + approvedBy("root")), ""},
	{"root lies", "root", edits(`"superedge.io/approved":"demo-2/canary/10"` + approvedBy("ann")), "superedge.io/approved-by must be root"},
}

// TestApprovalPolicy: kube-apiserver asks RBAC for the verb approve of who approves, resumes or skips, and for their
// own name; it asks nobody who edits otherwise, nor the controller.
func TestApprovalPolicy(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, NoKwok: true, NoScheduler: true})
	f.prepareApprovals()
	patch := func(user, patch string, sub ...string) error {
		_, err := f.gridsAs(user).Patch(f.ctx, "demo", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...)
		return err
	}
	annotate := func(user, annotations string) error {
		return patch(user, edits(annotations))
	}
	create := func(user, metadata string) error {
		_, err := f.tryKubectl(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo, namespace: default`+metadata+`},
 spec: {gridUniqKey: zone1, template: {selector: {}}, templatePool: {a: {}, b: {}}, rollout: {waves: [{name: canary, sites: {names: [lab]}, soak: 1m}, {name: rest}]}}}`,
			"create", "--as="+user, "--as-group=system:authenticated", "-f", "-")
		return err
	}

	f.Must(create("jane", ""))
	f.Must(patch("root", `{"status":{"sites":1,"readySites":1,"currentRevision":"demo-1","updateRevision":"demo-2"}}`, "status"))
	f.Eventually("the policy is in effect", func() error {
		if annotate("jane", resumed) == nil {
			f.Must(annotate("root", `"superedge.io/resumed":null,"superedge.io/approved-by":null`))
			return fmt.Errorf("jane may resume")
		}
		return nil
	})

	for _, c := range approvals {
		switch err := patch(c.user, c.patch); {
		case c.refused == "" && err != nil:
			t.Errorf("%s: %v", c.what, err)
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: want it refused with %q, got %v", c.what, c.refused, err)
		}
	}

	// A grid that is new: its waves are its own, an approval is not.
	f.kubectl("delete", "deploymentgrid", "demo")
	if err := create("jane", ", annotations: {superedge.io/at-once: demo-1/1}"); err == nil ||
		!strings.Contains(err.Error(), "jane may not approve: superedge.io/at-once") {
		t.Errorf("a new grid past the waves: %v", err)
	}
	f.Must(create("ann", ", annotations: {superedge.io/at-once: demo-1/1, superedge.io/approved-by: ann}"))

	f.noWarnings("grid-approvals.superedge.io")
}

// prepareApprovals installs the policy. It alone gives nobody a right: jane may edit, ann may approve too, and root may
// do everything.
func (f *fixture) prepareApprovals() {
	f.Helper()
	f.kubectl("apply", "-k", manifests+"/crds")
	f.kubectl("wait", "--for=condition=Established", "crd/deploymentgrids.superedge.io")
	f.kubectl("apply", "-f", manifests+"/application-grid-controller/rbac.yaml")
	f.kubectl("apply", "-f", manifests+"/approval-policy/policy.yaml", "--validate=strict")
	for _, user := range []string{"jane", "ann"} {
		f.kubectl("create", "rolebinding", user, "--clusterrole=edit", "--user="+user)
		f.kubectl("create", "rolebinding", user+"-edits", "--clusterrole=application-grid-edit", "--user="+user)
		f.kubectl("create", "rolebinding", user+"-reads", "--clusterrole=application-grid-view", "--user="+user)
	}
	f.kubectl("create", "rolebinding", "ann-approves", "--clusterrole=application-grid-approve", "--user=ann")
	f.kubectl("create", "clusterrolebinding", "root", "--clusterrole=cluster-admin", "--user=root")
}

// gridsAs are the DeploymentGrids for a user, or for the controller.
func (f *fixture) gridsAs(user string) dynamic.ResourceInterface {
	f.Helper()
	config := rest.CopyConfig(f.Cluster.RESTConfig())
	if user == "controller" {
		config.BearerToken = f.Cluster.Token(cluster.RoleController)
	} else {
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	}
	grids := schema.GroupVersionResource{Group: "superedge.io", Version: "v1", Resource: "deploymentgrids"}
	return suite.Dynamic(f, config).Resource(grids).Namespace("default")
}
