package view

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// publication has the objects that a step may have to show differently.
type publication struct {
	// whole has objects that are shown whole, and objects of any kind that may have been removed.
	whole map[facts.Key]struct{}
	// listed has objects that list endpoints.
	listed map[*facts.EndpointSet]struct{}
	// cleared has the resources that are no longer shown.
	cleared []*served.Resource
}

// newPublication makes one of what a step touched.
func newPublication(c *facts.Change) *publication {
	p := &publication{whole: make(map[facts.Key]struct{}), listed: make(map[*facts.EndpointSet]struct{})}
	maps.Copy(p.whole, c.Plain)
	maps.Copy(p.listed, c.EndpointSets)
	return p
}

func (p *publication) addObject(o *facts.EndpointSet) { p.listed[o] = struct{}{} }

func (p *publication) addService(s *facts.Service) {
	for _, r := range []*served.Resource{served.EndpointSlices, served.Endpoints} {
		for _, o := range s.Objects(r) {
			p.addObject(o)
		}
	}
}

func compareObjects(a, b *facts.EndpointSet) int { return a.Upstream.Compare(b.Upstream) }

// keys returns the names of the other objects, those of a resource in the order of lists.
func (p *publication) keys() []facts.Key {
	return slices.SortedFunc(maps.Keys(p.whole), func(a, b facts.Key) int {
		return cmp.Or(cmp.Compare(a.Resource.Resource, b.Resource.Resource), wire.CompareKeys(a.Name, b.Name))
	})
}

// listsEndpoints reports whether the objects of a resource list endpoints. All others are shown whole.
func listsEndpoints(r *served.Resource) bool {
	return r == served.EndpointSlices || r == served.Endpoints
}

// versionChange is the version of an object to show; if version is nil, the object is removed.
type versionChange struct {
	facts.Key

	version *history.Version
}

// publish updates the History in one step. It prunes everything before it locks the History.
func (v lockedView) publish(received time.Time, p *publication) {
	var all []versionChange
	for _, key := range p.keys() {
		if !v.filled[key.Resource] {
			continue
		}
		one := versionChange{Key: key}
		if o := v.facts.Upstream(key.Resource, key.Name); o != nil {
			one.version = v.version(key.Resource, o, o.Body)
		}
		all = append(all, one)
	}
	for _, o := range slices.SortedFunc(maps.Keys(p.listed), compareObjects) { // the order of lists
		if v.filled[o.Resource()] {
			all = append(all, v.prune(o))
		}
	}
	restored := v.facts.Restored()
	switch { // it is read once for all steps
	case restored == nil:
		v.former = nil
	case v.former == nil:
		v.former = restored.Shown()
	}
	v.history.Update(received, func(u *history.Update) {
		for _, s := range all {
			if s.version != nil {
				u.Put(s.Resource, *s.version, v.formerRevision(s))
			} else {
				u.Remove(s.Resource, s.Name)
			}
		}
		for _, r := range p.cleared {
			u.Clear(r)
			v.filled[r] = false
		}
		v.setReadability(u, restored)
	})
	v.advanceSnapshotVersion(all)
}

func (v lockedView) setReadability(u *history.Update, restored *facts.Snapshot) {
	if restored != nil && !v.serveRestored.Load() {
		return
	}
	asOf := uint64(0)
	if restored != nil {
		asOf = restored.Revision
	}
	u.SetRestored(asOf)
	for _, r := range served.All() {
		u.SetReadable(r, v.facts.Readable(r))
	}
}

func (v lockedView) version(r *served.Resource, o *wire.Object, body []byte) *history.Version {
	version, err := history.NewVersion(r, o, body)
	if err != nil {
		v.options.Logger.Error(err, "Cannot read an object, serving it without its fields",
			"resource", r.Resource, "namespace", o.Namespace, "name", o.Name)
	}
	return &version
}

// prune returns the version of an object that lists endpoints, and updates the counts.
func (v lockedView) prune(o *facts.EndpointSet) versionChange {
	key := facts.Key{Resource: o.Resource(), Name: o.Name()}
	if o.Gone {
		delete(v.counts, o)
		return versionChange{Key: key}
	}
	body, count := v.prunedBody(o)
	count.Hidden += o.Lost
	v.counts[o] = count
	return versionChange{key, v.version(key.Resource, o.Upstream, body)}
}

// prunedBody returns the body that the viewer may see of an object that lists endpoints. If the object is not governed,
// it is the upstream's body with corrected endpoints, and without hidden ones. No endpoint is shown of an object that
// cannot be read.
func (v lockedView) prunedBody(o *facts.EndpointSet) (body []byte, count EndpointCount) {
	local, err := v.localEndpointFor(o)
	if local != nil {
		body, err = local.body(o.Resource())
		if err == nil {
			return body, EndpointCount{Kept: 1}
		}
	}
	if err != nil {
		v.options.Logger.Error(err, "The endpoint of default/kubernetes is not replaced by the local one")
	}
	choice, suspicions := v.choiceFor(o), v.facts.AnySuspicions()
	governed := o.Service != nil && o.Service.Keys.Governed()
	var decision topology.Decision
	if governed && v.present {
		decision = o.Service.Keys.Decide(v.here, choice.Rank())
	}
	body, err = o.Codec().Rewrite(o.Body(), func(e wire.Endpoint) *wire.Correction {
		switch {
		case governed && !decision.Keep(v.facts.LabelsOf(e.NodeName)):
			count.Hidden++
			return leftOut
		case suspicions && choice.Hides(o.Tier(e)):
			count.Hidden++
			return &wire.Correction{Unusable: true, WithoutHints: governed}
		}
		count.Kept++
		if governed {
			return withoutHints
		}
		return nil
	})
	if err != nil {
		o.LogUnreadable(err)
		return nil, EndpointCount{}
	}
	return v.withoutPorts(o, slices.Clip(body), choice.Without), count
}

// How the endpoints of governed Services differ from the upstream's for a viewer that does not see them, and for one
// that does.
var (
	leftOut      = &wire.Correction{LeftOut: true}
	withoutHints = &wire.Correction{WithoutHints: true, KeepConditions: true}
)

// withoutPorts removes ports from the body of a slice.
func (v lockedView) withoutPorts(o *facts.EndpointSet, body []byte, without []topology.Port) []byte {
	if without == nil || o.Resource() != served.EndpointSlices {
		return body
	}
	body, _ = wire.WithoutPorts(body, func(p wire.Port) bool {
		return p.Numbered && slices.ContainsFunc(without, func(w topology.Port) bool {
			return w.Name == string(p.Name) && w.Protocol == string(p.Protocol)
		})
	}) // an error was logged when the facts read the ports
	return slices.Clip(body)
}

// formerRevision returns the revision at which an earlier process showed the same version; 0 if it did not.
func (v lockedView) formerRevision(s versionChange) uint64 {
	if before, found := v.former[s.Key]; found && before.Digest == s.version.Digest() {
		return before.Revision
	}
	return 0
}

// advanceSnapshotVersion notes that a change is worth writing to the disk. An update of the own Node's status, which
// arrives every few minutes, is not.
func (v lockedView) advanceSnapshotVersion(all []versionChange) {
	for _, s := range all {
		if s.Resource == served.Nodes && s.version != nil {
			if bytes.Equal(v.nodeMeta, s.version.Meta) {
				continue
			}
			v.nodeMeta = s.version.Meta
		}
		v.snapshotVersion = v.history.Revision()
	}
}

// SnapshotVersion returns a number that grows with every change that is worth writing to the disk.
func (v *View) SnapshotVersion() uint64 {
	var version uint64
	v.source.Read(func(in facts.Reader) { version = v.snapshotVersion + in.NoteChanges() })
	return version
}
