package facts

import (
	"encoding/json"
	"maps"
	"net/netip"
	"reflect"
)

// Notes are what other packages have found out, and the next process needs. They do not affect what is shown. Their
// maps are never changed.
type Notes struct {
	// Addresses has the names of nodes by address, as far as they were listed; IPv4 addresses are never in their IPv6
	// form.
	Addresses map[netip.Addr]string `json:",omitempty"`
	// InternalIPs are the InternalIPs of the nodes of the site by name, as far as they were listed.
	InternalIPs map[string][]netip.Addr `json:",omitempty"`
	// Partners has the names of the nodes that exchange facts with this one.
	Partners map[string]struct{} `json:",omitempty"`
	// PodNotes are about this node's pods: JSON of package livepods.
	PodNotes json.RawMessage `json:",omitempty"`
}

// Notes returns the notes of this process, or those of a Snapshot.
func (f *Facts) Notes() Notes { return get(f, func(Reader) Notes { return f.notes }) }

// UpdateNotes changes the notes: it puts new maps into them.
func (f *Facts) UpdateNotes(change func(*Notes)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.notes
	if change(&f.notes); !reflect.DeepEqual(before, f.notes) {
		f.noteChanges++
	}
}

// NoteChanges returns a number that grows with every change of the notes.
func (in Reader) NoteChanges() uint64 { return in.f.noteChanges }

// forgetAddresses drops the addresses of a removed node, because another node may get them. The caller
// holds the lock.
func (f *Facts) forgetAddresses(name string) {
	left := maps.Clone(f.notes.Addresses)
	maps.DeleteFunc(left, func(_ netip.Addr, of string) bool { return of == name })
	if len(left) < len(f.notes.Addresses) {
		f.notes.Addresses = left
		f.noteChanges++
	}
}
