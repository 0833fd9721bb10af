package diff

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/topology"
)

// webSpec is a spec of the grid web.
func webSpec(image, more string) string {
	return fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: DeploymentGrid,
		metadata: {namespace: shop, name: web, uid: u1}, spec: {gridUniqKey: zone1, siteLabel: true,
		%s template: {selector: {matchLabels: {app: x}},
		template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: %s}]}}}}}`, more, image)
}

// applied is a cluster in which a grid is applied to the sites, after which something else happens to its children.
func applied(t *testing.T, manifest string, then func(api client.Client), sites ...string) Source {
	t.Helper()
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1.AddToScheme} {
		if err := add(all); err != nil {
			t.Fatal(err)
		}
	}
	grid := &v1.DeploymentGrid{}
	data, err := object(t, manifest).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, grid); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(all).WithReturnManagedFields().WithObjects(grid).Build()
	s := Source{API: api, Nodes: map[string]topology.Labels{}}
	templates := gridchild.NewTemplates("", &grid.Spec, gridchild.Cluster{})
	for _, site := range sites {
		s.Nodes["node-"+site] = topology.Labels{"zone1": site}
		template, err := templates.Of(site)
		if err != nil {
			t.Fatal(err)
		}
		child, err := gridchild.RenderSite(gridchild.NewOwner(v1.DeploymentGridKind, grid), site,
			"web-"+site, template, map[string]string{})
		if err != nil {
			t.Fatal(err)
		}
		err = api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(child),
			client.FieldOwner(v1.FieldManager), client.ForceOwnership)
		if err != nil {
			t.Fatal(err)
		}
	}
	if then != nil {
		then(api)
	}
	return s
}

// someone patches the workload of the site z.
func someone(t *testing.T, patch string) func(client.Client) {
	t.Helper()
	return func(api client.Client) {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1.DeploymentGridKind.Child)
		u.SetNamespace("shop")
		u.SetName("web-z")
		if err := api.Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", []byte(patch)),
			client.FieldOwner("someone")); err != nil {
			t.Error(err)
		}
	}
}

func replicas(t *testing.T, workload string) float64 {
	t.Helper()
	number, _, err := unstructured.NestedFloat64(object(t, workload).Object, "spec", "replicas")
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// compare returns the answers about children, after the one about the grid itself.
func (s Source) compare(t *testing.T, manifest string) []*Answer {
	t.Helper()
	answers, err := s.Compare(t.Context(), object(t, manifest))
	if err != nil {
		t.Fatal(err)
	}
	return answers[1:]
}

// TestNoSiteHides: a site is answered for by another one only if its child changes in the same way.
func TestNoSiteHides(t *testing.T) {
	t.Parallel()
	sites := []string{"a", "b", "c", "z"}
	one, two := webSpec("one", ""), webSpec("two", "")
	for name, c := range map[string]struct {
		before, after string
		then          func(client.Client)
		want          string
	}{
		"nothing": {one, one, nil, "default: a b c z"},
		"all":     {one, two, nil, "default: a b c z"},
		"an override goes": {webSpec("one", "overrides: [{name: big, sites: {names: [z]}, replicas: 50}],"), two, nil,
			"default: a b c; default: z the template no longer sets replicas, so each site keeps the number it has"},
		"an override comes": {one, webSpec("one", "overrides: [{name: big, sites: {names: [z]}, replicas: 50}],"), nil,
			"default: a b c; default with big: z"},
		"another template that is the same": {one, webSpec("one", "templates: {z: other}, templatePool: {other: {"+
			"selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, "+
			"spec: {containers: [{name: c, image: one}]}}}},"), nil, "default: a b c; other: z"},
		"drift": {one, two, someone(t, `{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"three"}]}}}}`),
			"default: a b c; default: z"},
		"a field of somebody else's": {one, two, someone(t, `{"spec":{"minReadySeconds":7}}`), "default: a b c z"},
		"an autoscaler":              {one, two, someone(t, `{"spec":{"replicas":7}}`), "default: a b c z"},
		"an autoscaler that is to stop": {
			one, webSpec("one", "overrides: [{name: all, sites: {names: ['*']}, replicas: 2}],"),
			someone(t, `{"spec":{"replicas":7}}`), "default with all: a b c; default with all: z"},
		"what the Deployment's controller notes": {one, two,
			someone(t, `{"metadata":{"annotations":{"deployment.kubernetes.io/revision":"7"}},
				"status":{"replicas":7}}`), "default: a b c z"},
		"a site that is held": {one, two,
			someone(t, `{"metadata":{"annotations":{"superedge.io/hold":"works"}}}`),
			"default: a b c; default: z the annotation superedge.io/hold keeps it as it is: works"},
		"a workload without an owner": {one, two, someone(t, `{"metadata":{"ownerReferences":null}}`),
			"default: a b c; default: z it is adopted: fields that kubectl wrote and that the template does not have " +
				"are removed too, which is not shown here"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, a := range applied(t, c.before, c.then, sites...).compare(t, c.after) {
				if a.Refused {
					t.Errorf("refused: %s", a.Notes)
				}
				if strings.Contains(strings.Join(a.Notes, ""), "keeps the number it has") &&
					replicas(t, a.Live) != replicas(t, a.Merged) {
					t.Errorf("the replicas change from %s to %s", a.Live, a.Merged)
				}
				_, template, _ := strings.Cut(a.Title, "template ")
				got = append(got, template+": "+strings.Join(append(a.Sites, a.Notes...), " "))
			}
			if got := strings.Join(got, "; "); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestReplicasOfOthers: what an autoscaler has set stays, and is not the template's, so nothing is said about it.
func TestReplicasOfOthers(t *testing.T) {
	t.Parallel()
	s := applied(t, webSpec("one", ""), someone(t, `{"spec":{"replicas":7}}`), "z")
	answers := s.compare(t, webSpec("two", ""))
	if len(answers) != 1 || len(answers[0].Notes) > 0 || replicas(t, answers[0].Merged) != 7 {
		t.Errorf("got %+v", answers)
	}
}

// TestNameOfAnother: an object that has the name of a site's child is left alone, as the controller does.
func TestNameOfAnother(t *testing.T) {
	t.Parallel()
	owner := func(kind, name string) string {
		return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":"superedge.io/v1","kind":%q,"name":%q,`+
			`"uid":"another","controller":true}]}}`, kind, name)
	}
	for name, c := range map[string]struct{ patch, child, refused string }{
		"of another grid": {owner("DaemonSetGrid", "other"), v1.DeploymentGridKind.AlternativeChildName("web", "z"), ""},
		"of a deleted grid of this name": {owner("DeploymentGrid", "web"), "",
			"Deployment web-z of a deleted grid of this name is still there; the garbage collector removes it"},
		"of nobody": {`{"metadata":{"ownerReferences":null,"labels":null}}`, "",
			"Deployment web-z exists already and was not made by this grid"},
		"without the site in its selector": {`{"spec":{"selector":{"matchLabels":{"superedge.io/grid-site":null}}}}`,
			"web-z", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := applied(t, webSpec("one", ""), someone(t, c.patch), "a", "z")
			s.Site = "z"
			answers := s.compare(t, webSpec("two", ""))
			if len(answers) != 1 {
				t.Fatalf("%v", answers)
			}
			a := answers[0]
			said := strings.Join(a.Notes, "; ")
			if a.Sites[0] != "z" || a.Refused != (c.refused != "") || a.Refused == a.Differs() ||
				!strings.Contains(said, "REFUSED: "+c.refused) && a.Refused {
				t.Errorf("got %+v", a)
			}
			if a.Merged == "" {
				return
			}
			merged := object(t, a.Merged)
			_, selects, _ := unstructured.NestedString(merged.Object, "spec", "template", "metadata", "labels",
				v1.LabelGridSite)
			if merged.GetName() != c.child || selects != (c.child != "web-z") {
				t.Errorf("got %s", a.Merged)
			}
		})
	}
}

// TestNewKey: a site of the new key has no workload yet, and the answer says what becomes of those of the old key.
func TestNewKey(t *testing.T) {
	t.Parallel()
	followed := strings.Replace(webSpec("one", ""), "spec:", "status: {gridUniqKey: zone1}, spec:", 1)
	s := applied(t, followed, nil, "a")
	s.Nodes["new"] = topology.Labels{"rack": "r1"}
	answers, err := s.Compare(t.Context(), object(t, strings.Replace(webSpec("one", ""), "zone1", "rack", 1)))
	if err != nil || len(answers) != 2 {
		t.Fatalf("%v, %v", answers, err)
	}
	if about, a := answers[0], answers[1]; a.Live != "" || a.Child != "Deployment.shop.web-r1" ||
		len(about.Notes) != 1 || !strings.HasPrefix(about.Notes[0], "gridUniqKey changes from zone1 to rack: ") {
		t.Errorf("got %+v, %+v", about, a)
	}
}

// TestDiffKnowsTheRevision: children get the annotations of the revision, and of overrides that labels of nodes select.
func TestDiffKnowsTheRevision(t *testing.T) {
	t.Parallel()
	for name, rollout := range map[string]string{"with waves": "rollout: {waves: [{name: all}]},", "without": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manifest := webSpec("one", rollout+
				"overrides: [{name: big, sites: {nodeSelector: {matchLabels: {size: big}}}, images: {c: two}}],")
			s, grid := applied(t, manifest, nil, "a"), &v1.DeploymentGrid{}
			if err := s.API.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "web"}, grid); err != nil {
				t.Fatal(err)
			}
			revision, err := gridrevision.Of("DeploymentGrid", grid)
			if err != nil {
				t.Fatal(err)
			}
			annotations := map[string]any{v1.AnnotationVariant: revision.Name + "@/"}
			if rollout != "" {
				annotations[v1.AnnotationRevision] = revision.Name
			}
			answers := s.compare(t, manifest)
			if len(answers) != 1 {
				t.Fatalf("%v", answers)
			}
			got, _, err := unstructured.NestedMap(object(t, answers[0].Merged).Object, "metadata", "annotations")
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{v1.AnnotationVariant, v1.AnnotationRevision} {
				if got[key] != annotations[key] {
					t.Errorf("%s: got %v, want %v", key, got[key], annotations[key])
				}
			}
		})
	}
}

// TestService: the answer about a ServiceGrid is about its Service, and names no site.
func TestService(t *testing.T) {
	t.Parallel()
	answers, err := applied(t, webSpec("one", ""), nil).Compare(t.Context(), object(t, `{apiVersion: superedge.io/v1,
		kind: ServiceGrid, metadata: {namespace: shop, name: web},
		spec: {gridUniqKey: zone1, template: {ports: [{port: 80}]}}}`))
	if err != nil || len(answers) != 1 || answers[0].Title != "ServiceGrid shop/web" ||
		answers[0].Child != "Service.shop.web-svc" || !answers[0].Differs() {
		t.Errorf("got %+v, %v", answers, err)
	}
}

// TestNoSuchSite: the answer about a site that does not exist does not deny the others.
func TestNoSuchSite(t *testing.T) {
	t.Parallel()
	s := applied(t, webSpec("one", ""), nil, "a")
	s.Site = "nowhere"
	answers, err := s.Compare(t.Context(), object(t, webSpec("two", "")))
	if err != nil {
		t.Fatal(err)
	}
	if want := "no node has the label zone1=nowhere, so there is nothing to compare"; len(answers) != 1 ||
		!slices.Equal(answers[0].Notes, []string{want}) {
		t.Errorf("got %+v", answers[0])
	}
}

// TestUnreadableWaves: the controller changes nothing of a grid whose waves it cannot read, and the answer says that.
func TestUnreadableWaves(t *testing.T) {
	t.Parallel()
	s := applied(t, webSpec("one", ""), nil, "a")
	answers, err := s.Compare(t.Context(), object(t, webSpec("two",
		`rollout: {waves: [{name: eu, sites: {nodeSelector: {matchLabels: {region: "west of it"}}}}]},`)))
	if err != nil {
		t.Fatal(err)
	}
	if len(answers) != 1 || !answers[0].Refused ||
		!strings.Contains(answers[0].Notes[0], "REFUSED: spec.rollout.waves[eu].sites: ") {
		t.Errorf("got %+v", answers[0])
	}
}

// TestSiteOfAnEmptyValue: no workload can be named after it, which the answer says.
func TestSiteOfAnEmptyValue(t *testing.T) {
	t.Parallel()
	s := applied(t, webSpec("one", ""), nil, "a")
	s.Nodes["unnamed"], s.Nodes["elsewhere"] = topology.Labels{"zone1": ""}, topology.Labels{}
	answers := s.compare(t, webSpec("two", ""))
	var out strings.Builder
	for _, answer := range answers {
		answer.Live, answer.Merged = "", ""
		if err := answer.Print(t.Context(), nil, &out, &out); err != nil {
			t.Fatal(err)
		}
	}
	if text := out.String(); len(answers) != 2 || !strings.Contains(text, `1 site: ""`) ||
		!strings.Contains(text, "# REFUSED: no Deployment can be named after this site") {
		t.Errorf("got %d answers: %s", len(answers), text)
	}
}
