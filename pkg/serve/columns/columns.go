package columns

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// What kubectl shows for a value that an object does not have.
const (
	none    = "<none>"
	unknown = "<unknown>"
	unset   = "<unset>"
)

// wide is the priority of a column that kubectl shows with --output=wide only.
const wide = 1

// Definitions returns the columns for an object's kind. The error names a kind for which there are none.
func Definitions(o runtime.Object) ([]metav1.TableColumnDefinition, error) {
	switch o.(type) {
	case *corev1.Service:
		return serviceColumns, nil
	case *discoveryv1.EndpointSlice:
		return endpointSliceColumns, nil
	case *corev1.Endpoints:
		return endpointsColumns, nil
	case *corev1.Node:
		return nodeColumns, nil
	case *corev1.Namespace:
		return namespaceColumns, nil
	default:
		return nil, fmt.Errorf("there are no columns for a %T", o)
	}
}

// Cells returns an object's cells at the time now: one for each column, in the order of Definitions.
func Cells(o runtime.Object, now time.Time) ([]any, error) {
	switch o := o.(type) {
	case *corev1.Service:
		return serviceCells(o, now), nil
	case *discoveryv1.EndpointSlice:
		return endpointSliceCells(o, now), nil
	case *corev1.Endpoints:
		return endpointsCells(o, now), nil
	case *corev1.Node:
		return nodeCells(o, now), nil
	case *corev1.Namespace:
		return []any{o.Name, string(o.Status.Phase), age(o.CreationTimestamp, now)}, nil
	default:
		return nil, fmt.Errorf("there are no columns for a %T", o)
	}
}

var namespaceColumns = []metav1.TableColumnDefinition{
	nameColumn(), text("Status", "The status of the namespace"), ageColumn(),
}

// text makes a column of strings. All cells of these kinds are strings.
func text(name, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}
}

// wideText makes a text column that is shown with --output=wide only.
func wideText(name, description string) metav1.TableColumnDefinition {
	column := text(name, description)
	column.Priority = wide
	return column
}

func nameColumn() metav1.TableColumnDefinition {
	column := text("Name", metav1.ObjectMeta{}.SwaggerDoc()["name"])
	column.Format = "name"
	return column
}

func ageColumn() metav1.TableColumnDefinition {
	return text("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"])
}

// age returns how long ago an object was created.
func age(created metav1.Time, now time.Time) string {
	if created.IsZero() {
		return unknown
	}
	return duration.HumanDuration(now.Sub(created.Time))
}
