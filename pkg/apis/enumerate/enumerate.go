// Package enumerate writes lists of names into sentences. Conditions, events, tables and health lines use it, so that a
// list that is too long to be read is cut the same way everywhere.
package enumerate

import (
	"fmt"
	"strings"
)

// First names the first of the names, at most this many, and counts the others: "a, b, c and 4 more".
func First(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
