package gridchild

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

var (
	// ErrTaken means that the name belongs to a child of another grid.
	ErrTaken = errors.New("the name is taken")
	// ErrLeftOver means that the object is a child of a deleted grid of this name, which the garbage collector will
	// remove.
	ErrLeftOver = errors.New("left over")
)

// Claim returns nil if an object with the name of a child is the grid's child, or may be adopted, and else an error
// that says why not. controller is the object's controlling owner, nil if it has none, and grid the value of its label
// LabelGridSelector.
func Claim(o *Owner, k v1.GridKind, name string, controller *metav1.OwnerReference, grid string) error {
	switch by := controller; {
	case by != nil && string(by.UID) == o.UID:
		return nil
	case by != nil && by.Kind == o.Kind && by.Name == o.Name:
		return ErrLeftOver
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
