package gridchild

import (
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

var (
	// ErrTaken is that another grid has the name.
	ErrTaken = errors.New("the name is taken")
	// ErrLeftOver is that a child of a deleted grid of this name is still there; the garbage collector removes it.
	ErrLeftOver = errors.New("left over")
)

// Claim says why an object that has the name of a child must not become one; nil if it is one, or may be adopted.
// controller is the object's owner that manages it, if any, and grid the value of its label LabelGridSelector.
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
			"%s %s exists already and belongs to %s %s; give the grid, or what that makes, another name", k.Child.Kind,
			name, by.Kind, by.Name)
	case grid != o.Name:
		return Errorf(v1.ReasonNameConflict,
			"%s %s exists already and was not made by this grid; delete or rename it, or label it %s=%s to have it "+
				"adopted",
			k.Child.Kind, name, v1.LabelGridSelector, o.Name)
	}
	return nil
}
