package nodename

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Of returns the name of this node: the override, or the host's own name if the override is empty. Like nodes'
// registered names it is in lower case, and without spaces around it. kube-proxy reads its --hostname-override in the
// same way, and the two must agree.
func Of(override string) (string, error) {
	name := override
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("finding this host's name: %w", err)
		}
	}
	if name = strings.ToLower(strings.TrimSpace(name)); name == "" {
		return "", errors.New("it is empty")
	}
	return name, nil
}

// mostNear is the most names that Near returns.
const mostNear = 3

// Near returns those of names that may have been meant by a name that is not among them, the nearest first. Two names
// are near if one continues the other (a host's name with and without its domain), or if they differ by a few
// characters.
func Near(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	// Names that differ in more than a third of their characters are not alike.
	most := min(3, len(name)/3)
	var candidates []candidate
	for _, other := range names {
		switch {
		case other == "" || name == "":
		case extends(name, other) || extends(other, name):
			candidates = append(candidates, candidate{other, 0})
		default:
			if d := distance(name, other, most); d <= most {
				candidates = append(candidates, candidate{other, d})
			}
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	candidates = candidates[:min(mostNear, len(candidates))]
	near := make([]string, 0, len(candidates))
	for _, c := range candidates {
		near = append(near, c.name)
	}
	return near
}

// extends reports whether long is short with a domain, or with more after a dash.
func extends(long, short string) bool {
	rest, ok := strings.CutPrefix(long, short)
	return ok && rest != "" && (rest[0] == '.' || rest[0] == '-')
}

// distance returns how many characters have to be added, removed or replaced to make one text the other (the
// Levenshtein distance). If that is more than most, it returns some number above most.
func distance(a, b string, most int) int {
	if d := len(a) - len(b); d > most || -d > most {
		return most + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
