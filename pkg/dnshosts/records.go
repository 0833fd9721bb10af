package dnshosts

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Record is one line of the hosts file.
type Record struct {
	// Name is {grid}-{ordinal}.{service}.{namespace}.svc.{domain}.
	Name    string
	Address netip.Addr
}

// Line returns the record as a line of the file: the address, one space, the name. SuperEdge's daemon writes the same
// form.
func (r Record) Line() string { return r.Address.String() + " " + r.Name }

// compare orders records for the file: by name, and for the same name by address, IPv4 first.
func compare(a, b Record) int {
	if order := strings.Compare(a.Name, b.Name); order != 0 {
		return order
	}
	return a.Address.Compare(b.Address)
}

// name returns the DNS name of a set's pod.
func (s *ownSet) name(ordinal int32, domain string) string {
	return s.grid + "-" + strconv.Itoa(int(ordinal)) + s.suffix(domain)
}

func (s *ownSet) suffix(domain string) string {
	return "." + s.set.ServiceName + "." + s.set.Namespace + ".svc." + domain
}

// parsedName has the parts of a record's name, without the ordinal and the domain.
type parsedName struct{ grid, service, namespace string }

// parseName parses a record's name. With domain "" it accepts any domain. A grid's name may have dots.
func parseName(name, domain string) (parsedName, bool) {
	var parsed parsedName
	var before string
	if domain == "" {
		at := strings.LastIndex(name, ".svc.")
		if at < 0 || len(validation.IsDNS1123Subdomain(name[at+len(".svc."):])) > 0 {
			return parsed, false
		}
		before = name[:at]
	} else {
		var ok bool
		if before, ok = strings.CutSuffix(name, ".svc."+domain); !ok {
			return parsed, false
		}
	}
	if len(validation.IsDNS1123Subdomain(before)) > 0 {
		return parsed, false
	}
	labels := strings.Split(before, ".")
	if len(labels) < 3 {
		return parsed, false
	}
	parsed.namespace, parsed.service = labels[len(labels)-1], labels[len(labels)-2]
	pod := strings.Join(labels[:len(labels)-2], ".")
	dash := strings.LastIndexByte(pod, '-')
	if dash < 1 {
		return parsed, false
	}
	if _, ok := parseOrdinal(pod[dash+1:]); !ok {
		return parsed, false
	}
	parsed.grid = pod[:dash]
	return parsed, true
}

// parseOrdinal reads an ordinal as the StatefulSet controller writes it: decimal, without sign or leading zeros.
func parseOrdinal(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, false
	}
	return int32(n), true
}

// ordinalOf returns the ordinal of a set's pod: what follows the set's whole name and a dash.
func ordinalOf(set, pod string) (int32, bool) {
	text, ok := strings.CutPrefix(pod, set+"-")
	if !ok {
		return 0, false
	}
	return parseOrdinal(text)
}

// ownSet is the StatefulSet of a grid for this node's unit.
type ownSet struct {
	set  *Set
	grid string
}

// View is the state on which records depend.
type View struct {
	// NodeLabels are the labels of this node.
	NodeLabels map[string]string
	Sets       []*Set
	// Service returns a Service; nil if there is none.
	Service func(namespace, name string) *Service
	// Grid returns a StatefulSetGrid; nil if there is none.
	Grid func(namespace, name string) *Grid
	// GridGone reports whether the grid with this UID was known and was deleted.
	GridGone func(uid types.UID) bool
	// Pods returns a set's pods; false while they are not known yet.
	Pods func(set *Set) ([]*Pod, bool)
}

// ownSets returns the sets that belong to this node's units.
func (v *View) ownSets() []ownSet {
	// The keys of the node's labels, by the value that LabelGridUniqKey has for them. Two keys may have the same value,
	// because a label's value cannot contain a slash.
	units := make(map[string][]string, len(v.NodeLabels))
	for key := range v.NodeLabels {
		value := v1.KeyLabelValue(key)
		units[value] = append(units[value], key)
	}
	var own []ownSet
	for _, set := range v.Sets {
		for _, key := range units[set.KeyLabel] {
			if v.counts(set, key, v.NodeLabels[key]) {
				own = append(own, ownSet{set: set, grid: set.Owner})
				break
			}
		}
	}
	return own
}

// counts reports whether a set is the one of its grid for the unit with this key and value of a node label.
func (v *View) counts(set *Set, key, unit string) bool {
	switch {
	case set.Owner == "", set.ServiceName == "", set.Terminating:
		return false
	case set.GridLabel != set.Owner:
		return false
	case set.Key != "" && set.Key != key:
		return false
	case unit == "", set.NodeSelector[key] != unit:
		return false
	case set.UnitLabel != "":
		if set.UnitLabel != unit {
			return false
		}
	case set.Name != set.Owner+"-"+unit:
		// A grid does not give such a name, so the set's unit is not known.
		return false
	}
	// A missing grid is tolerated, because the daemon may not be allowed to list grids. But if the grid was known and
	// was deleted, or was created again, its old sets do not count.
	if v.GridGone(set.OwnerUID) {
		return false
	}
	if grid := v.Grid(set.Namespace, set.Owner); grid != nil && (grid.UID != set.OwnerUID || grid.Terminating) {
		return false
	}
	service := v.Service(set.Namespace, set.ServiceName)
	return service != nil && !service.Terminating && service.KeyLabel == set.KeyLabel
}

// Records returns the lines for the file, sorted. previous has the current lines of the block: of those, the lines of
// sets whose pods are not known yet stay. pending counts these sets.
func (v *View) Records(domain string, previous []string) (lines []string, pending int) {
	var records []Record
	unknown := map[parsedName]bool{}
	for _, own := range v.ownSets() {
		pods, known := v.Pods(own.set)
		if !known {
			pending++
			unknown[parsedName{own.grid, own.set.ServiceName, own.set.Namespace}] = true
			continue
		}
		for _, pod := range pods {
			records = append(records, own.records(pod, domain)...)
		}
	}
	slices.SortFunc(records, compare)
	records = slices.Compact(records)
	if len(unknown) > 0 {
		records = append(records, kept(previous, domain, unknown)...)
		slices.SortFunc(records, compare)
		records = slices.Compact(records)
	}
	lines = make([]string, len(records))
	for i, record := range records {
		lines[i] = record.Line()
	}
	return lines, pending
}

// kept returns the records among lines whose names belong to one of these sets.
func kept(lines []string, domain string, of map[parsedName]bool) []Record {
	var records []Record
	for _, line := range lines {
		address, name, _ := strings.Cut(line, " ")
		parsed, ok := parseName(name, domain)
		if !ok || !of[parsed] {
			continue
		}
		if ip, err := netip.ParseAddr(address); err == nil {
			records = append(records, Record{Name: name, Address: ip})
		}
	}
	return records
}

// records returns the records of one pod: one for each of its addresses. A pod has none if it belongs to a deleted set
// of the same name, if it is ending or has ended, or if the set was scaled below its ordinal. Readiness does not
// matter: the members of a set must find each other before they are ready.
func (s *ownSet) records(pod *Pod, domain string) []Record {
	if pod.OwnerUID != s.set.UID || pod.Namespace != s.set.Namespace || pod.Ended {
		return nil
	}
	ordinal, ok := ordinalOf(s.set.Name, pod.Name)
	if !ok || ordinal < s.set.Start || ordinal-s.set.Start >= s.set.Replicas {
		return nil
	}
	name := s.name(ordinal, domain)
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil
	}
	records := make([]Record, 0, len(pod.Addresses))
	for _, address := range pod.Addresses {
		records = append(records, Record{Name: name, Address: address})
	}
	return records
}
