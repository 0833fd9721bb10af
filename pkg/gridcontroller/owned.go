package gridcontroller

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// whole marks, in what project returns, a value that is owned as a whole: below it the API server may have
// added defaults, which nobody owns. No owned map has a key of this name.
const whole = "."

// project returns the part of a live value that a field manager owns. fields are its managedFields, decoded:
// a tree of "f:<field>", "k:<keys of an element of a list>", "v:<value of an element of a set>" and ".", the
// value itself. An empty tree owns the value as a whole.
func project(live any, fields map[string]any) any {
	switch value := live.(type) {
	case map[string]any:
		out := map[string]any{}
		found := false
		for field, sub := range fields {
			name, isField := strings.CutPrefix(field, "f:")
			if !isField {
				continue
			}
			found = true
			if v, ok := value[name]; ok && v != nil {
				out[name] = project(v, subtree(sub))
			}
		}
		if !found {
			return map[string]any{whole: value}
		}
		return out
	case []any:
		var out []any
		found := false
		for field, sub := range fields {
			if strings.HasPrefix(field, "k:") || strings.HasPrefix(field, "v:") {
				found = true
				_ = sub
			}
		}
		if !found {
			return map[string]any{whole: value}
		}
		for _, element := range value { // in the order of the live list, which is the one it was applied in
			if sub, ok := elementFields(element, fields); ok {
				out = append(out, project(element, sub))
			}
		}
		return out
	}
	return live
}

func subtree(value any) map[string]any {
	tree, ok := value.(map[string]any)
	if !ok {
		return nil
	}
	return tree
}

// elementFields returns what is owned of an element of a list, if anything is.
func elementFields(element any, fields map[string]any) (map[string]any, bool) {
	for field, sub := range fields {
		if text, ok := strings.CutPrefix(field, "v:"); ok {
			var value any
			if json.Unmarshal([]byte(text), &value) == nil && sameScalar(value, element, false) {
				return subtree(sub), true
			}
			continue
		}
		text, ok := strings.CutPrefix(field, "k:")
		if !ok {
			continue
		}
		var keys map[string]any
		object, isObject := element.(map[string]any)
		if !isObject || json.Unmarshal([]byte(text), &keys) != nil {
			continue
		}
		matches := true
		for key, value := range keys {
			matches = matches && sameScalar(value, object[key], false)
		}
		if matches {
			return subtree(sub), true
		}
	}
	return nil, false
}

// covers tells whether what is owned (see project) is exactly what is desired. It may say no for values that
// the API server writes in another way; it never says yes for a difference.
func covers(desired, owned any, quantity bool) bool {
	if object, ok := owned.(map[string]any); ok {
		if value, ok := object[whole]; ok {
			return within(desired, value, quantity)
		}
	}
	switch d := desired.(type) {
	case map[string]any:
		o, ok := owned.(map[string]any)
		if !ok {
			return false
		}
		count := 0
		for key, value := range d {
			if value == nil {
				continue
			}
			count++
			if have, ok := o[key]; !ok || !covers(value, have, quantity || holdsQuantities(key)) {
				return false
			}
		}
		return count == len(o)
	case []any:
		o, ok := owned.([]any)
		if !ok || len(o) != len(d) {
			return false
		}
		for i := range d {
			if !covers(d[i], o[i], quantity) {
				return false
			}
		}
		return true
	}
	return sameScalar(desired, owned, quantity)
}

// within tells whether a value that is owned as a whole says all that is desired: nobody else can have changed
// it, so what it says beyond that are defaults.
func within(desired, live any, quantity bool) bool {
	switch d := desired.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return false
		}
		for key, value := range d {
			if value != nil && !within(value, l[key], quantity || holdsQuantities(key)) {
				return false
			}
		}
		return true
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(d) {
			return false
		}
		for i := range d {
			if !within(d[i], l[i], quantity) {
				return false
			}
		}
		return true
	}
	return sameScalar(desired, live, quantity)
}

// holdsQuantities names the fields whose values the API server writes in a canonical form.
func holdsQuantities(field string) bool {
	switch field {
	case "limits", "requests", "overhead", "sizeLimit", "divisor":
		return true
	}
	return false
}

func sameScalar(a, b any, quantity bool) bool {
	if reflect.DeepEqual(a, b) {
		return true
	}
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return x == y
		}
	}
	if !quantity || a == nil || b == nil {
		return false
	}
	x, err := resource.ParseQuantity(fmt.Sprint(a))
	if err != nil {
		return false
	}
	y, err := resource.ParseQuantity(fmt.Sprint(b))
	return err == nil && x.Cmp(y) == 0
}

// number is a value as a float64, if it is a number that has one.
func number(value any) (float64, bool) {
	switch v := value.(type) {
	case float64:
		return v, true
	case int64:
		if v > 1<<53 || v < -(1<<53) {
			return math.NaN(), true // not the same as anything, not even as itself rounded
		}
		return float64(v), true
	}
	return 0, false
}
