// Package enumerate writes lists of names into sentences. Conditions, events, tables and health lines use it, so that a
// list that is too long to be read is cut the same way everywhere.
package enumerate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// First names the first of the names, at most this many, and counts the others: "a, b, c and 4 more". An empty name is
// quoted.
func First(names []string, most int) string {
	return FirstOf(names[:min(len(names), most)], len(names))
}

// FirstOf is First for names that are the first of so many.
func FirstOf(names []string, count int) string {
	shown := slices.Clone(names)
	for i, name := range shown {
		shown[i] = cmp.Or(name, `""`)
	}
	if count <= len(shown) {
		return strings.Join(shown, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(shown, ", "), count-len(shown))
}

// Count is a number with its noun: "1 site", "2 sites".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
