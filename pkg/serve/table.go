package serve

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/serve/columns"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// appendTable appends a Table with one object. The first Table of a response has the column definitions.
func (r *representation) appendTable(dst []byte, typed served.Typed) ([]byte, error) {
	row, err := r.row(typed)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(typed)
	if err != nil {
		return nil, err
	}
	t := r.objectType()
	table := metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: t.APIVersion, Kind: t.Kind},
		ListMeta: metav1.ListMeta{ResourceVersion: accessor.GetResourceVersion()},
		Rows:     []metav1.TableRow{row},
	}
	if !r.table.begun {
		if table.ColumnDefinitions, err = columns.Definitions(typed); err != nil {
			return nil, err
		}
		r.table.begun = true
	}
	return appendMarshalled(dst, table)
}

// row returns an object's row. The bookmark at the end of the initial events always has its metadata, because clients
// recognise it by an annotation.
func (r *representation) row(typed served.Typed) (metav1.TableRow, error) {
	cells, err := columns.Cells(typed, r.table.now())
	if err != nil {
		return metav1.TableRow{}, err
	}
	accessor, err := meta.Accessor(typed)
	if err != nil {
		return metav1.TableRow{}, fmt.Errorf("a %T has no metadata: %w", typed, err)
	}
	row := metav1.TableRow{Cells: cells}
	endsInitialEvents := accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	switch {
	case r.table.include == metav1.IncludeObject:
		setKind(typed, r.resource.Type())
		row.Object.Object = typed
	case r.table.include == metav1.IncludeMetadata || endsInitialEvents:
		partial := meta.AsPartialObjectMetadata(accessor)
		t := r.objectType()
		t.Kind = kindMetadata
		setKind(partial, t)
		row.Object.Object = partial
	}
	return row, nil
}
