package gridchild

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Assignment has the names of the children of a grid's sites, whether the children exist or not.
type Assignment struct {
	// BySite has the names by site, Sites the sites by name.
	BySite, Sites map[string]string
	// Clashes has an error for each site that gets no name, because the site's own name is empty, or because another
	// site's child has the name. No revision of the grid changes that.
	Clashes map[string]error
	// SelectsSite has whether the selector of a site's child names the site. A selector cannot be changed, so an
	// existing workload keeps its own. The labels of its pods are kept as well: a change would replace the pods.
	SelectsSite map[string]bool

	owner *Owner
}

// Existing has the facts about an object with the name of a child on which the name and content of children depend.
type Existing struct {
	// Controller is the owner that controls it; nil if it has none. Grid is the value of its label LabelGridSelector.
	Controller *metav1.OwnerReference
	Grid       string
	// SelectsSite is set if its selector names the site.
	SelectsSite bool
}

// ExistingOf reads the facts about an object.
func ExistingOf(u *unstructured.Unstructured) *Existing {
	_, selects, err := unstructured.NestedString(u.Object, "spec", "selector", "matchLabels", v1.LabelGridSite)
	return &Existing{metav1.GetControllerOf(u), u.GetLabels()[v1.LabelGridSelector], selects && err == nil}
}

// Assign gives every site the name of its child: {grid}-{site}, or an alternative where that is not valid or belongs to
// another grid. It depends on the names that exist and not on the children's labels, because everyone who may change a
// child can change its labels. known returns the object of a name; nil if there is none.
func Assign(o *Owner, sites []string, known func(name string) *Existing) *Assignment {
	a := &Assignment{
		BySite: map[string]string{}, Sites: map[string]string{}, Clashes: map[string]error{},
		SelectsSite: map[string]bool{}, owner: o,
	}
	isOurs := func(name string) bool { // it is a child, or may be adopted
		object := known(name)
		return object != nil && object.CheckClaim(o, name) == nil
	}
	var others []string
	for _, site := range sites {
		natural := o.Name + "-" + site
		switch object := known(natural); {
		case site == "":
			a.Clashes[site] = Errorf(v1.ReasonInvalidName,
				"no %s can be named after this site: the value of the label %s of its nodes is empty; give it a value",
				o.Child.Kind, o.Key)
		case o.CheckName(natural) != "", object != nil && errors.Is(object.CheckClaim(o, natural), ErrTaken),
			!isOurs(natural) && isOurs(o.AlternativeChildName(o.Name, site)):
			others = append(others, site)
		default:
			a.BySite[site], a.Sites[natural] = natural, site
		}
	}
	for _, site := range others {
		name := o.AlternativeChildName(o.Name, site)
		if other, ok := a.Sites[name]; ok {
			a.Clashes[site] = Errorf(v1.ReasonNameConflict,
				"the name %s for the %s of this site is that of site %s; give one of the two sites another name",
				name, o.Child.Kind, other)
			continue
		}
		a.BySite[site], a.Sites[name] = name, site
	}
	for site, name := range a.BySite {
		a.SelectsSite[site] = cmp.Or(known(name), &Existing{SelectsSite: o.SelectsSite}).SelectsSite
	}
	return a
}

// Render renders the child of a site from templates. now are those of the grid's spec, which has the replicas. In a
// rollout the child has the revision of its templates in an annotation.
func (a *Assignment) Render(site string, from, now *Templates) (*unstructured.Unstructured, error) {
	template, err := from.Of(site)
	if err = cmp.Or(a.Clashes[site], err); err != nil {
		return nil, err
	}
	if from != now {
		delete(template, "replicas")
		if replicas, set, err := now.Replicas(site); err == nil && set {
			template["replicas"] = replicas
		}
	}
	annotations := map[string]string{}
	if variant := from.VariantAnnotation(site); variant != "" {
		annotations[v1.AnnotationVariant] = variant
	}
	if now.spec.Rollout != nil {
		annotations[v1.AnnotationRevision] = from.Revision
	}
	of := *a.owner
	of.SelectsSite = a.SelectsSite[site]
	return RenderSite(&of, site, a.BySite[site], template, annotations)
}

var (
	// ErrTaken means that the name belongs to a child of another grid.
	ErrTaken = errors.New("the name is taken")
	// ErrLeftOver means that the garbage collector will remove the object: a child of a deleted grid of this name.
	ErrLeftOver = errors.New("left over")
)

// CheckClaim returns nil if an object with the name of a child is the grid's child, or may be adopted, and else why
// not.
func (e *Existing) CheckClaim(o *Owner, name string) error {
	switch by := e.Controller; {
	case by != nil && by.UID == o.UID:
		return nil
	case by != nil && by.Kind == o.Kind && by.Name == o.Name:
		return fmt.Errorf("%w: %w", ErrLeftOver, Errorf(v1.ReasonNameConflict,
			"%s %s of a deleted grid of this name is still there; the garbage collector removes it",
			o.Child.Kind, name))
	case by != nil:
		err := Errorf(v1.ReasonNameConflict,
			"%s %s exists already and belongs to %s %s; rename the grid, or that owner",
			o.Child.Kind, name, by.Kind, by.Name)
		if strings.HasPrefix(by.APIVersion, v1.GroupName+"/") {
			return fmt.Errorf("%w: %w", ErrTaken, err)
		}
		return err
	case e.Grid != o.Name:
		return Errorf(v1.ReasonNameConflict,
			"%s %s exists already and was not made by this grid; delete it, or label it %s=%s to have it adopted",
			o.Child.Kind, name, v1.LabelGridSelector, o.Name)
	}
	return nil
}
