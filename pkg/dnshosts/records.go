package dnshosts

import (
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// View is the state on which records depend.
type View struct {
	// NodeLabels are the labels of this node.
	NodeLabels map[string]string
	// Services has the keys of the labels by which the Services of ServiceGrids divide nodes into sites.
	Services map[types.NamespacedName]string
	Slices   map[types.NamespacedName]*Slice
}

// ordinal is the form of what follows the set's name and a dash in the name of a StatefulSet's pod.
var ordinal = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// Records returns the lines of each name, sorted by address. A name has none if its pod is ending, or is known to have
// lost its address.
func (v *View) Records(domain string) map[string][]string {
	// A set's alternative name belongs to one site only. Its plain name, {grid}-{site}, may be that of another grid in
	// another site, so it counts only where no pod of a set with the alternative name has an address.
	plain, alternative := map[string][]netip.Addr{}, map[string][]netip.Addr{}
	for _, slice := range v.Slices {
		service := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Service}
		site := v.NodeLabels[v.Services[service]] // no set is for the site ""
		for _, endpoint := range slice.Endpoints {
			dash := max(strings.LastIndexByte(endpoint.Pod, '-'), 0)
			grid, isAlternative := v1.StatefulSetGridKind.GridOf(endpoint.Pod[:dash], site)
			if grid == "" || !ordinal.MatchString(endpoint.Pod[dash+1:]) {
				continue
			}
			name := grid + endpoint.Pod[dash:] + "." + slice.Service + "." + slice.Namespace + ".svc." + domain
			addresses := plain
			if isAlternative {
				addresses = alternative
			}
			if len(validation.IsDNS1123Subdomain(name)) == 0 {
				addresses[name] = append(addresses[name], endpoint.Addresses...)
			}
		}
	}
	for name, addresses := range alternative {
		if len(addresses) > 0 || plain[name] == nil {
			plain[name] = addresses
		}
	}
	records := make(map[string][]string, len(plain))
	for name, addresses := range plain {
		slices.SortFunc(addresses, netip.Addr.Compare) // IPv4 first
		records[name] = nil
		for _, address := range slices.Compact(addresses) {
			records[name] = append(records[name], address.String()+" "+name) // as SuperEdge's daemon writes it
		}
	}
	return records
}

// linesOf returns the lines for the file.
func linesOf(records map[string][]string) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(records)) {
		lines = append(lines, records[name]...)
	}
	return lines
}

// update returns the lines of a file with addresses from records of a snapshot, which a wrapper corrects while the
// upstream is away. The snapshot may be older than the file. So no name is added, and one that it lacks is kept.
func update(block []string, records map[string][]string) []string {
	updated := make(map[string][]string)
	for _, line := range block {
		_, name, _ := strings.Cut(line, " ")
		if lines, known := records[name]; known {
			updated[name] = lines
		} else {
			updated[name] = append(updated[name], line)
		}
	}
	return linesOf(updated)
}
