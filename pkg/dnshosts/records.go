package dnshosts

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// View is the state on which records depend.
type View struct {
	// NodeLabels are the labels of this node.
	NodeLabels map[string]string
	Slices     map[key]*Slice
	Services   map[key]Service
}

// statefulName has the parts of the name of a StatefulSetGrid's pod.
type statefulName struct {
	grid, service, namespace string
	ordinal                  int32
}

func (n statefulName) in(domain string) string {
	return n.grid + "-" + strconv.Itoa(int(n.ordinal)) + "." + n.service + "." + n.namespace + ".svc." + domain
}

// parseOrdinal reads an ordinal as the StatefulSet controller writes it: decimal, without sign or leading zeros.
func parseOrdinal(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, false
	}
	return int32(n), true
}

// splitPod splits the name of a StatefulSet's pod, {set}-{ordinal}.
func splitPod(pod string) (set string, ordinal int32, ok bool) {
	dash := strings.LastIndexByte(pod, '-')
	if dash < 1 {
		return "", 0, false
	}
	ordinal, ok = parseOrdinal(pod[dash+1:])
	return pod[:dash], ordinal, ok
}

// sites returns this node's sites by the value of LabelGridUniqKey for their keys. Two keys may have the same value
// there, because a label's value cannot contain a slash.
func (v *View) sites() map[string][]site {
	sites := make(map[string][]site, len(v.NodeLabels))
	for key, value := range v.NodeLabels {
		if value != "" {
			label := v1.KeyLabelValue(key)
			sites[label] = append(sites[label], site{key, value})
		}
	}
	return sites
}

// site is one of this node's sites: a label's key and value.
type site struct{ key, name string }

// ownPod has the addresses of the pods with one name in this node's site.
type ownPod struct {
	// alternative is set if the set has its alternative name. Such a name belongs to one site only; {grid}-{site} of
	// one grid may be that of another grid in another site.
	alternative bool
	addresses   []netip.Addr
}

// Records returns the addresses of each name, sorted. A name has none if its pod is ending, or is known to have lost
// its address.
func (v *View) Records(domain string) map[string][]netip.Addr {
	sites := v.sites()
	own := map[statefulName]ownPod{}
	for _, slice := range v.Slices {
		service, ok := v.Services[key{slice.Namespace, slice.Service}]
		if !ok || service.Terminating {
			continue
		}
		for _, u := range sites[service.KeyLabel] {
			if service.Key == "" || service.Key == u.key {
				slice.addTo(own, u.name)
			}
		}
	}
	addresses := make(map[string][]netip.Addr, len(own))
	for name, pod := range own {
		if full := name.in(domain); len(validation.IsDNS1123Subdomain(full)) == 0 {
			slices.SortFunc(pod.addresses, netip.Addr.Compare) // IPv4 first
			addresses[full] = slices.Compact(pod.addresses)
		}
	}
	return addresses
}

// linesOf returns the lines for the file.
func linesOf(records map[string][]netip.Addr) (lines []string) {
	for _, name := range slices.Sorted(maps.Keys(records)) {
		lines = appendLines(lines, name, records[name])
	}
	return lines
}

func appendLines(lines []string, name string, addresses []netip.Addr) []string {
	for _, address := range addresses {
		lines = append(lines, address.String()+" "+name) // as SuperEdge's daemon writes it
	}
	return lines
}

// update returns the lines of a file with addresses from records of a snapshot, which a wrapper corrects while the
// upstream is away. The snapshot may be older than the file. So no name is added, and one that it lacks is kept.
func update(block []string, records map[string][]netip.Addr) (updated []string) {
	written := make(map[string]bool)
	for _, line := range block {
		_, name, _ := strings.Cut(line, " ")
		switch addresses, known := records[name]; {
		case !known:
			updated = append(updated, line)
		case !written[name]: // the name's other lines are among these
			updated = appendLines(updated, name, addresses)
			written[name] = true
		}
	}
	return updated
}

// addTo adds the slice's pods that belong to a site.
func (s *Slice) addTo(own map[statefulName]ownPod, site string) {
	for _, endpoint := range s.Endpoints {
		set, ordinal, ok := splitPod(endpoint.Pod)
		if !ok {
			continue
		}
		grid, alternative := v1.StatefulSetGridKind.GridOf(set, site)
		if grid == "" {
			continue
		}
		name := statefulName{grid, s.Service, s.Namespace, ordinal}
		pod := own[name]
		if alternative && !pod.alternative && len(endpoint.Addresses) > 0 {
			pod = ownPod{alternative: true}
		}
		if alternative == pod.alternative {
			pod.addresses = append(pod.addresses, endpoint.Addresses...)
		}
		own[name] = pod
	}
}
