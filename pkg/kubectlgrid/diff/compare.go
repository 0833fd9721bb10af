package diff

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Source makes Answers.
type Source struct {
	API client.Client
	// Nodes has the labels of all nodes, by name.
	Nodes map[string]topology.Labels
	// Merge makes the function that applies the patches of overrides to one kind of workload.
	Merge func(kind schema.GroupVersionKind) gridchild.Merge
	// Site is the only site to ask about; empty for all.
	Site string
}

// Compare returns what applying a grid, which must have a namespace, would change. Its client cannot write.
func (s Source) Compare(ctx context.Context, manifest *unstructured.Unstructured) ([]*Answer, error) {
	k, ok := kindOf(manifest)
	if !ok {
		return nil, fmt.Errorf("%s %s is not a grid", manifest.GetKind(), manifest.GetName())
	}
	s.API = client.NewDryRunClient(client.WithFieldValidation(s.API, metav1.FieldValidationStrict))
	about := &Answer{Grid: fmt.Sprintf("%s %s/%s", k.Kind, manifest.GetNamespace(), manifest.GetName())}
	grid := k.New()
	if err := about.applyGrid(ctx, s.API, manifest, grid); err != nil || about.Refused != "" {
		return []*Answer{about}, err
	}
	c := &comparison{Source: s, owner: gridchild.OwnerOf(k, grid), grid: about.Grid, groups: map[group]*Answer{}}
	if err := c.readLive(ctx); err != nil {
		return nil, fmt.Errorf("asking for the %ss of namespace %s: %w", k.Child.Kind, c.owner.Namespace, err)
	}
	if service, ok := grid.(*v1.ServiceGrid); ok {
		child, err := gridchild.OfService(c.owner, service.Spec.Template)
		err = c.add(ctx, "", "", child, err)
		return c.answers, err
	}
	if err := c.addSites(ctx, grid); err != nil {
		return nil, err
	}
	if len(c.answers) == 0 {
		none := "no node has the label " + c.owner.Key + ", so there are no sites"
		if s.Site != "" {
			none = fmt.Sprintf("no node has the label %s=%s, so there is no site %s", c.owner.Key, s.Site, s.Site)
		}
		about.Notes = append(about.Notes, none)
		return []*Answer{about}, nil
	}
	c.answers[0].Notes = append(about.Notes, c.answers[0].Notes...)
	return c.answers, nil
}

// comparison is about one grid.
type comparison struct {
	Source

	owner *gridchild.Owner
	// live has the objects of the namespace that have the kind of the grid's children, by name.
	live map[string]live
	// grid is Answer.Grid. There is one answer for each group.
	grid    string
	answers []*Answer
	groups  map[group]*Answer
}

// live has the facts about a live object: its replicas, and a digest that is the same for two objects that differ only
// in their site and replicas.
type live struct {
	gridchild.Existing

	replicas int64
	likeness [sha256.Size]byte
}

// group identifies sites whose children would change in the same way: they have the same now, and get the same. The
// replicas of now count if the child that would be applied sets them; otherwise they are kept.
type group struct {
	template, refused string
	replicas          int64
	likeness          [sha256.Size]byte
}

// readLive reads the objects of a namespace that have the kind of the grid's children, also those that are not children
// of a grid. It lists whole objects, so it lists them page by page, and keeps none.
func (c *comparison) readLive(ctx context.Context) error {
	var unreadable error
	visit := func(u *unstructured.Unstructured) {
		likeness, err := likenessOf(u, c.owner)
		unreadable = errors.Join(unreadable, err)
		replicas, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
		c.live[u.GetName()] = live{gridchild.ExistingOf(c.owner, u), replicas, likeness}
	}
	c.live = map[string]live{}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(c.owner.Child.GroupVersion().WithKind(c.owner.Child.Kind + "List"))
	err := pages.Each(ctx, c.API, list, visit, client.InNamespace(c.owner.Namespace))
	return errors.Join(err, unreadable)
}

// likenessOf returns a digest of everything that applying a child could change in a live one, except the site and the
// replicas: its labels, the controller's annotations, its owners, its spec, and the fields that the controller owns in
// it, which are removed when they are not applied again.
func likenessOf(u *unstructured.Unstructured, o *gridchild.Owner) ([sha256.Size]byte, error) {
	annotations := u.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool {
		return !strings.HasPrefix(key, v1.GroupName+"/") || key == v1.AnnotationAppliedDigest
	})
	spec, _ := u.Object["spec"].(map[string]any)
	spec = maps.Clone(spec)
	delete(spec, "replicas")
	parts := []any{u.GetLabels(), annotations, u.GetOwnerReferences(), spec}
	for _, entry := range u.GetManagedFields() {
		if entry.Manager == v1.FieldManager {
			parts = append(parts, entry.Operation, entry.Subresource, entry.FieldsV1)
		}
	}
	text, err := json.Marshal(parts)
	site := v1.SiteOf(u, o.Name)
	anySite := strings.NewReplacer(fmt.Sprintf("%q:%q", v1.LabelGridSite, site), "",
		fmt.Sprintf("%q:%q", o.Key, site), "")
	return sha256.Sum256([]byte(anySite.Replace(string(text)))), err
}

// addSites adds the sites of a grid of workloads, whose children package gridchild names and renders.
func (c *comparison) addSites(ctx context.Context, grid v1.Object) error {
	spec, _ := v1.Workload(grid)
	revision, err := gridrevision.Of(c.owner.Kind, c.owner.Name, spec)
	if err != nil {
		return err
	}
	nodes := map[string][]labels.Labels{}
	for _, node := range c.Nodes {
		if site, has := node[c.owner.Key]; has {
			nodes[site] = append(nodes[site], labels.Set(node))
		}
	}
	templates := gridchild.NewTemplates(spec, gridchild.Context{
		HasNode: func(site string, of labels.Selector) bool { return slices.ContainsFunc(nodes[site], of.Matches) },
		Merge:   c.Merge(c.owner.Child),
	})
	source := gridchild.Source{
		Templates: templates, Scale: templates, Revision: revision.Name, InRollout: spec.Rollout != nil,
	}
	sites := slices.Sorted(maps.Keys(nodes))
	names := gridchild.Assign(c.owner, sites, func(name string) (gridchild.Existing, bool) {
		live, ok := c.live[name]
		return live.Existing, ok
	})
	for _, site := range sites {
		if c.Site != "" && c.Site != site {
			continue
		}
		template, overrides := gridchild.Parts(templates.Variant(site))
		if len(overrides) > 0 {
			template += " with " + strings.Join(overrides, ", ")
		}
		child, err := names.Child(site, source)
		if err := c.add(ctx, site, template, child, err); err != nil {
			return err
		}
	}
	return nil
}

// add adds a site to the answer of its group. The child of the first one is tried. err is why there is no child.
func (c *comparison) add(ctx context.Context, site, template string, child *gridchild.Child, err error) error {
	a, g := &Answer{Grid: c.grid, Template: template, Sites: []string{site}}, group{template: template}
	if err == nil {
		now := c.live[child.Object.GetName()]
		if g.likeness, err = now.likeness, now.Claim; child.SetsReplicas() {
			g.replicas = now.replicas
		}
	}
	if err := a.refuse(err); err != nil {
		return err
	}
	g.refused = a.Refused
	if known := c.groups[g]; known != nil {
		known.Sites = append(known.Sites, site)
		return nil
	}
	c.groups[g], c.answers = a, append(c.answers, a)
	if a.Refused != "" {
		return nil
	}
	return a.tryApply(ctx, c.API, child)
}
