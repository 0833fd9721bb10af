package gridchild

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Names has the names of the children of a grid's sites, whether the children exist or not.
type Names struct {
	// BySite has the names by site, Sites the sites by name.
	BySite, Sites map[string]string
	// Clashes has an error for each site that gets no name, because the site's own name is empty, or because another
	// site's child has the name. No revision of the grid changes that.
	Clashes map[string]error
}

// Known says which objects exist. The names of children depend on that, on the grid, and on the site.
type Known struct {
	// Exists reports whether the grid has a child of this name.
	Exists func(name string) bool
	// Taken reports whether the natural name for a site's child ({grid}-{site}) is known to belong to another grid.
	Taken func(site string) bool
}

// Assign gives every site the name of its child: {grid}-{site}, or an alternative where that is not valid or taken. It
// depends on the names that exist and not on the children's labels, because everyone who may change a child can change
// its labels.
func Assign(o *Owner, sites []string, known Known) *Names {
	k, grid := o.GridKind, o.Name
	n := &Names{
		BySite:  make(map[string]string, len(sites)),
		Sites:   make(map[string]string, len(sites)),
		Clashes: map[string]error{},
	}
	var others []string
	for _, site := range sites {
		natural := grid + "-" + site
		if site == "" {
			n.Clashes[site] = Errorf(v1.ReasonInvalidName,
				"no %s can be named after this site: the value of the label %s of its nodes is empty; give it a value",
				k.Child.Kind, o.Key)
			continue
		}
		if k.CheckName(natural) != "" {
			others = append(others, site)
			continue
		}
		if !known.Exists(natural) && (known.Taken(site) || known.Exists(k.AlternativeChildName(grid, site))) {
			others = append(others, site)
			continue
		}
		n.BySite[site], n.Sites[natural] = natural, site
	}
	for _, site := range others {
		name := k.AlternativeChildName(grid, site)
		if other, ok := n.Sites[name]; ok {
			n.Clashes[site] = Errorf(v1.ReasonNameConflict,
				"the name %s for the %s of this site is that of site %s; give one of the two sites another name",
				name, k.Child.Kind, other)
			continue
		}
		n.BySite[site], n.Sites[name] = name, site
	}
	return n
}

var (
	// ErrTaken means that the name belongs to a child of another grid.
	ErrTaken = errors.New("the name is taken")
	// ErrLeftOver means that the object is a child of a deleted grid of this name, which the garbage collector will
	// remove.
	ErrLeftOver = errors.New("left over")
)

// Claim returns nil if an object with the name of a child is the grid's child, or may be adopted. Otherwise it returns
// an error with the reason. controller is the object's controlling owner, nil if it has none, and grid the value of its
// label LabelGridSelector.
func Claim(o *Owner, k v1.GridKind, name string, controller *metav1.OwnerReference, grid string) error {
	switch by := controller; {
	case by != nil && string(by.UID) == o.UID:
		return nil
	case by != nil && by.Kind == o.Kind && by.Name == o.Name:
		return fmt.Errorf("%w: %w", ErrLeftOver, Errorf(v1.ReasonNameConflict,
			"%s %s of a deleted grid of this name is still there; the garbage collector removes it",
			k.Child.Kind, name))
	case by != nil && strings.HasPrefix(by.APIVersion, v1.GroupName+"/"):
		return fmt.Errorf("%w: %w", ErrTaken,
			Errorf(v1.ReasonNameConflict, "%s %s exists already and belongs to %s %s",
				k.Child.Kind, name, by.Kind, by.Name))
	case by != nil:
		return Errorf(v1.ReasonNameConflict,
			"%s %s exists already and belongs to %s %s; rename the grid, or that owner",
			k.Child.Kind, name, by.Kind, by.Name)
	case grid != o.Name:
		return Errorf(v1.ReasonNameConflict,
			"%s %s exists already and was not made by this grid; delete it, or label it %s=%s to have it adopted",
			k.Child.Kind, name, v1.LabelGridSelector, o.Name)
	}
	return nil
}
