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

// Line is the record as it stands in the file: the address, one space, the name. It is also the form that
// SuperEdge's daemon writes.
func (r Record) Line() string { return r.Address.String() + " " + r.Name }

// compare orders records for the file: by name, and of one name IPv4 first.
func compare(a, b Record) int {
	if order := strings.Compare(a.Name, b.Name); order != 0 {
		return order
	}
	return a.Address.Compare(b.Address)
}

// name puts the name of a set's pod together from its parts.
func (s *ownSet) name(ordinal int32, domain string) string {
	return s.grid + "-" + strconv.Itoa(int(ordinal)) + s.suffix(domain)
}

func (s *ownSet) suffix(domain string) string {
	return "." + s.set.ServiceName + "." + s.set.Namespace + ".svc." + domain
}

// parsedName is a record's name taken apart.
type parsedName struct{ grid, service, namespace string }

// parseName takes a record's name apart. With domain "" any domain will do. A grid's name may have dots.
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

// ordinalOf is the ordinal of a set's pod: what follows the set's whole name and a dash.
func ordinalOf(set, pod string) (int32, bool) {
	text, ok := strings.CutPrefix(pod, set+"-")
	if !ok {
		return 0, false
	}
	return parseOrdinal(text)
}

// ownSet is a StatefulSet that makes up this node's unit's part of a grid.
type ownSet struct {
	set  *Set
	grid string
}

// View is the state that records follow from.
type View struct {
	// NodeLabels are this node's.
	NodeLabels map[string]string
	Sets       []*Set
	// Service finds a Service; nil if there is none.
	Service func(namespace, name string) *Service
	// Grid finds a StatefulSetGrid; nil if it is not there.
	Grid func(namespace, name string) *Grid
	// GridGone reports whether the grid with this UID was there and is not any more.
	GridGone func(uid types.UID) bool
	// Pods are a set's pods; false while they are not known yet.
	Pods func(set *Set) ([]*Pod, bool)
}

// ownSets are the sets that count: those that are this node's unit's part of a grid.
func (v *View) ownSets() []ownSet {
	// What a set of this unit says of its key and its unit, by what stands in its label. Two keys may share a
	// label's value, which holds no slash.
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

// counts reports whether a set is the part of its grid for the unit that key and value of a node label make.
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
		// Not a name that a grid gives: what its pods should be called is anyone's guess.
		return false
	}
	// A grid that is not there is tolerated: its list may not be readable here. One that was there and has gone,
	// or came back as another one, takes its sets with it.
	if v.GridGone(set.OwnerUID) {
		return false
	}
	if grid := v.Grid(set.Namespace, set.Owner); grid != nil && (grid.UID != set.OwnerUID || grid.Terminating) {
		return false
	}
	service := v.Service(set.Namespace, set.ServiceName)
	return service != nil && !service.Terminating && service.KeyLabel == set.KeyLabel
}

// Records are the lines that should stand in the file, in order. Of a set whose pods are not known yet, the
// lines that stand there now stay: previous are the present lines of the block.
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

// kept are the records among lines whose names belong to one of these sets.
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

// records are those of one pod: one for each of its addresses. A pod that is not the set's own (another
// incarnation's of the same name), that ends or has ended, or that the set does not ask for any more has none.
// Whether it is ready does not matter: the members of a set have to find each other before they are.
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
