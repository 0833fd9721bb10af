package nodename

import (
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

// Near returns the first of the names that may have been meant by a name that is not among them, because one continues
// the other, as a host's name does with and without its domain.
func Near(name string, names []string) []string {
	near := slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(other string) bool {
		return !extends(name, other) && !extends(other, name)
	})
	return near[:min(mostNear, len(near))]
}

// extends reports whether long is short with a domain, or with more after a dash.
func extends(long, short string) bool {
	rest, ok := strings.CutPrefix(long, short)
	return ok && short != "" && rest != "" && (rest[0] == '.' || rest[0] == '-')
}
