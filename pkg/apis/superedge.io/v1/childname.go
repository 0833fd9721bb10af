package v1

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// nameRules are the rules for the name of a kind of child.
//
// +kubebuilder:object:generate=false
type nameRules struct {
	longest int
	// dots is set if the name may be a subdomain, letterFirst if it must not begin with a digit.
	dots, letterFirst bool
}

// hashLength is the number of characters in the hash of an alternative name.
const hashLength = 8

// CheckName says why a child of this kind cannot have a name; empty if it can.
func (k GridKind) CheckName(name string) string {
	if len(name) > k.names.longest {
		return fmt.Sprintf("must be no more than %d characters", k.names.longest)
	}
	var problems []string
	switch {
	case k.names.dots:
		problems = validation.IsDNS1123Subdomain(name)
	case k.names.letterFirst:
		problems = validation.IsDNS1035Label(name)
	default:
		problems = validation.IsDNS1123Label(name)
	}
	if len(problems) > 0 {
		return problems[0]
	}
	return ""
}

// ChildName returns the name of a site's workload: {grid}-{site}, or AlternativeChildName where that is not a valid
// name. A workload may also have the alternative name because {grid}-{site} was taken when the workload was made; its
// LabelGridSite names its site.
func (k GridKind) ChildName(grid, site string) string {
	if name := grid + "-" + site; k.CheckName(name) == "" {
		return name
	}
	return k.AlternativeChildName(grid, site)
}

// AlternativeChildName returns {grid}-{site}-{hash}, where hash is a hash of grid and site. Characters that a name
// cannot have are replaced by hyphens, and what is too long is cut before the hash.
func (k GridKind) AlternativeChildName(grid, site string) string {
	sum := sha256.Sum256([]byte(grid + "/" + site))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	plain := func(text string, forDot rune) string {
		return strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
				return r
			case r == '.':
				return forDot
			case r >= 'A' && r <= 'Z':
				return r - 'A' + 'a'
			}
			return '-'
		}, text)
	}
	dot := '-'
	if k.names.dots {
		dot = '.'
	}
	name := plain(grid, dot) + "-" + plain(site, '-')
	if longest := k.names.longest - hashLength - 1; len(name) > longest {
		name = name[:longest]
	}
	return strings.Trim(name, "-.") + "-" + hash
}

// mostHyphens is up to how many hyphens a part of an alternative name may have for GridOf to try dots in their place.
const mostHyphens = 8

// GridOf returns the grid whose workload in a site has this name, and whether that is its AlternativeChildName; "" if
// no grid gives the name in this site. It cannot find a grid whose name was cut in the alternative name, nor one whose
// name has dots and more than mostHyphens dots and hyphens.
func (k GridKind) GridOf(child, site string) (grid string, alternative bool) {
	if site == "" {
		return "", false
	}
	if at := len(child) - hashLength - 1; at > 0 && child[at] == '-' {
		// The site in the name may be cut, and the grid's name may have hyphens: the hash says which part it is.
		for end := range at {
			if child[end] != '-' {
				continue
			}
			if grid := k.alternativeOf(child[:end], site, child); grid != "" {
				return grid, true
			}
		}
	}
	if grid, ok := strings.CutSuffix(child, "-"+site); ok && grid != "" && k.CheckName(child) == "" {
		return grid, false
	}
	return "", false
}

// alternativeOf returns the grid whose alternative name is child and begins with begin; "" if no grid has it.
func (k GridKind) alternativeOf(begin, site, child string) string {
	if k.AlternativeChildName(begin, site) == child {
		return begin
	}
	var hyphens []int
	for i, r := range begin {
		if r == '-' {
			hyphens = append(hyphens, i)
		}
	}
	if k.names.dots || len(hyphens) > mostHyphens {
		return ""
	}
	grid := []byte(begin)
	for dots := 1; dots < 1<<len(hyphens); dots++ {
		for bit, i := range hyphens {
			grid[i] = '-'
			if dots&(1<<bit) != 0 {
				grid[i] = '.'
			}
		}
		if k.AlternativeChildName(string(grid), site) == child {
			return string(grid)
		}
	}
	return ""
}

// SiteOf returns the site of a grid's workload: the value of its label, or if it has no label, the part of its name
// after the grid's name.
func SiteOf(child metav1.Object, grid string) string {
	return cmp.Or(child.GetLabels()[LabelGridSite], strings.TrimPrefix(child.GetName(), grid+"-"))
}
