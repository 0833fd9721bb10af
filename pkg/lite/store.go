package lite

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Store has kube-apiserver's last answers to this node. Its methods may be called by several goroutines at once.
type Store struct {
	node string
	// accounts are the allowed ServiceAccounts, as NAMESPACE/NAME. kinds has the kinds that are kept, by key.
	accounts map[string]bool
	kinds    map[string]*kind

	// recorded is how many changes there have been since the start of the process.
	recorded atomic.Uint64
	// podsAnswered is set while the kubelet may have the node's pods from an answer of this Store, or of an earlier
	// process.
	podsAnswered atomic.Bool

	mu sync.Mutex
	// The fields below are guarded by mu.

	sets   map[scope]*set
	tokens map[tokenRequest]token
	// removals has the pods that the kubelet has asked to remove, by their UIDs.
	removals map[types.UID]removal
	// heavy has the candidates that were too large.
	heavy map[any]leftOut
	// values has all that the disk must have, by its key, but for the objects of sets.
	values map[string][]byte
	// pending are the changes that are not on the disk, by their keys. inState are those that the last result of
	// wholeState includes.
	pending, inState changes
	// lastContact is when kube-apiserver last sent anything about the node's pods, by the wall clock of that moment. It
	// sends a bookmark at least about every minute. lastContactHere is when that was received or read, by the monotonic
	// clock of this process, which changes of the wall clock do not affect.
	lastContact, lastContactHere time.Time
	// certified is when the validity of the kubelet's certificate begins.
	certified time.Time
	// contactPrecision is how much older than lastContact the value on the disk may be.
	contactPrecision time.Duration
	// keys are the cluster's keys for tokens, and keysAt is when they were received.
	keys   jose.JSONWebKeySet
	keysAt time.Time
	// needed has a value when the node's pods, or their claims and volumes, have changed, or an account reads something
	// new.
	needed chan struct{}
}

type set struct {
	objects map[types.NamespacedName]*wire.Object
	// version is the resourceVersion of the set; 0 before its first complete list.
	version uint64
	// saved is set once the set is on the disk.
	saved bool
	// current is set once kube-apiserver has sent the complete set since the start of the process.
	current bool
	// read is when an account last read it, or when the account's last watch of it ends.
	read time.Time
}

// size returns the approximate size of the objects in bytes.
func (s *set) size() (size int) {
	for _, o := range s.objects {
		size += sizeOf(o)
	}
	return size
}

func sizeOf(o *wire.Object) int { return len(o.Meta) + len(o.Body) }

// token is an answer to a tokenRequest.
type token struct {
	// Token is the token itself.
	Token string `json:"token"`
	// Expiration is from kube-apiserver's answer, Until from the token itself, which may be much later
	// (--service-account-extend-token-expiration of kube-apiserver).
	Expiration time.Time `json:"expiration"`
	Until      time.Time `json:"until"`
	// Issued is when kube-apiserver issued it, by the clock of kube-apiserver, as the other two.
	Issued time.Time `json:"issued"`
	// fetched is when this process fetched it, by the monotonic clock; zero if an earlier process has.
	fetched time.Time
}

// isDue reports whether a token must be renewed: after half of its lifetime, or if its age is not certain.
func (t token) isDue() bool { return t.mayBeOlder(t.Expiration.Sub(t.Issued) / 2) }

// hasExpired reports whether a token has expired by itself. The clock, which may be wrong, counts only if the age of
// the token is not certain.
func (t token) hasExpired(now time.Time) bool {
	lifetime := t.Until.Sub(t.Issued)
	return t.mayBeOlder(lifetime) && (!now.Before(t.Until) || !t.fetched.IsZero() && time.Since(t.fetched) >= lifetime)
}

// mayBeOlder reports whether a token may have an age. The monotonic clock stands still while the machine is suspended,
// and the other one may be set.
func (t token) mayBeOlder(age time.Duration) bool {
	return max(time.Since(t.fetched), time.Now().Round(0).Sub(t.fetched)) >= age // Round takes the monotonic clock off
}

// maxContactPrecision is how much older than the last contact with kube-apiserver the one on the disk may be.
const maxContactPrecision = 10 * time.Minute

func newStore(node string) *Store {
	s := &Store{
		node: node, accounts: map[string]bool{}, kinds: map[string]*kind{},
		sets: map[scope]*set{}, tokens: map[tokenRequest]token{}, removals: map[types.UID]removal{},
		heavy: map[any]leftOut{}, values: map[string][]byte{}, pending: changes{},
		contactPrecision: maxContactPrecision,
		needed:           make(chan struct{}, 1),
	}
	s.podsAnswered.Store(true)
	for _, k := range kinds {
		s.kinds[k.key()] = k
	}
	return s
}

// Keys of the store are a letter and fields, separated by zeros.
const (
	keySet     = "s" // kind, namespace, fields: the version
	keyObject  = "o" // kind, namespace, fields, namespace, name: the object
	keyToken   = "t" // the request as JSON: the token as JSON
	keyRemoval = "g" // UID: the time
	keyHeard   = "h" // the time
	keyKeys    = "k" // the cluster's keys as a JSON Web Key Set
)

func keyOf(parts ...string) string { return strings.Join(parts, "\x00") }

func (s scope) key(letter string, more ...string) string {
	return keyOf(append([]string{letter, s.kind.key(), s.namespace, s.fields}, more...)...)
}

func objectKey(in scope, name types.NamespacedName) string {
	return in.key(keyObject, name.Namespace, name.Name)
}

func removalKey(uid types.UID) string { return keyOf(keyRemoval, string(uid)) }

// isLasting reports whether a key of the store is lasting.
func isLasting(key string) bool { return strings.HasPrefix(key, keyRemoval+"\x00") }

// load loads the state from the disk. The problems are entries that cannot be read. They are removed, and so is the
// whole set of such an object, so that no client gets a part of it.
func (s *Store) load(state map[string][]byte) (problems []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var broken []scope
	for _, key := range slices.Sorted(maps.Keys(state)) {
		in, err := s.loadEntry(key, state[key])
		if err != nil {
			problems = append(problems, fmt.Errorf("the entry %q: %w", key, err))
			s.recordValue(key, nil)
			broken = append(broken, in)
		}
	}
	for _, in := range broken {
		if in.kind != nil {
			s.remove(in)
		}
	}
	s.lastContactHere = time.Now()
	s.signalNeeds()
	return problems
}

// loadEntry loads one entry, and returns the set that it is of; one without a kind if it is of none.
func (s *Store) loadEntry(key string, value []byte) (in scope, err error) {
	parts := strings.Split(key, "\x00")
	letter := parts[0]
	if letter != keyObject {
		s.values[key] = value
	}
	switch {
	case letter == keySet && len(parts) == 4, letter == keyObject && len(parts) == 6:
		if in = (scope{s.kinds[parts[1]], parts[2], parts[3]}); in.kind == nil {
			// It is of a later version of this program, or of an account that is no longer allowed.
			s.recordValue(key, nil)
			break
		}
		var object *wire.Object
		if set := s.getOrAddSet(in); letter == keySet {
			set.version, err = strconv.ParseUint(string(value), 10, 64)
			set.saved = true
		} else if object, err = wire.ParseObject(value); err == nil {
			set.objects[object.Key()] = object
		}
	case letter == keyToken && len(parts) == 2:
		var request tokenRequest
		var kept token
		if err = errors.Join(json.Unmarshal([]byte(parts[1]), &request), json.Unmarshal(value, &kept)); err == nil {
			s.tokens[request] = kept
		}
	case letter == keyRemoval && len(parts) == 2:
		s.removals[types.UID(parts[1])] = removalOf(value)
	case letter == keyHeard:
		err = s.lastContact.UnmarshalText(value)
	case letter == keyKeys:
		err = s.useKeys(value)
	}
	return in, err
}

// getOrAddSet returns the set of a scope, a new one if it does not exist. The caller holds the lock.
func (s *Store) getOrAddSet(of scope) *set {
	if s.sets[of] == nil {
		s.sets[of] = &set{objects: map[types.NamespacedName]*wire.Object{}}
	}
	return s.sets[of]
}

// encoded returns an object as a message.
func encoded(o *wire.Object) []byte { return wire.AppendObject(nil, o.Meta, o.Body, numberOf(o)) }

// numberOf returns the resourceVersion of an object; 0 if it is no number, as kube-apiserver's are.
func numberOf(o *wire.Object) uint64 {
	number, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return number
}

// change is a change that must be written to the disk: a new value, an object, or neither if the key is removed.
type change struct {
	value  []byte
	object *wire.Object
	// in is the set that it is of, and name the object; without a kind it is of none.
	in   scope
	name types.NamespacedName
	// versionOf is the set whose version the value is; nil for other values.
	versionOf *set
	// since is when the disk began to be behind for the key.
	since time.Time
}

// bytes returns the value on the disk. An object is encoded only now, because it may wait for hours.
func (c change) bytes() []byte {
	if c.object != nil {
		return encoded(c.object)
	}
	return c.value
}

func (c change) size() int {
	if c.object != nil {
		return sizeOf(c.object)
	}
	return len(c.value)
}

// recordValue records a new value, nil if the key is removed. The caller holds the lock.
func (s *Store) recordValue(key string, value []byte) { s.recordChange(key, change{value: value}) }

// recordObject records that an object has changed; nil if it is removed. The caller holds the lock.
func (s *Store) recordObject(in scope, name types.NamespacedName, o *wire.Object) {
	s.recordChange(objectKey(in, name), change{object: o, in: in, name: name})
	if naming[in.kind] {
		s.signalNeeds()
	}
}

// recordChange records a change. The caller holds the lock.
func (s *Store) recordChange(key string, made change) {
	if made.since = time.Now(); s.pending[key] != nil {
		made.since = s.pending[key].since
	}
	if s.pending[key] = &made; made.value != nil {
		s.values[key] = made.value
	} else {
		delete(s.values, key)
	}
	s.recorded.Add(1)
}

// unsavedChanges returns how many changes are not on the disk, and since when.
func (s *Store) unsavedChanges() (count int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, made := range s.pending {
		if since.IsZero() || made.since.Before(since) {
			since = made.since
		}
	}
	return len(s.pending), since
}

// signalNeeds wakes the follower, because the needs of the node's pods may have changed.
func (s *Store) signalNeeds() {
	select {
	case s.needed <- struct{}{}:
	default:
	}
}

// versionOf returns the version of a set, or "". A source continues from it, because a list from a replica that lags
// would be older.
func (s *Store) versionOf(in scope) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if set := s.sets[in]; set != nil && set.version > 0 {
		return strconv.FormatUint(set.version, 10)
	}
	return ""
}

// isCurrent reports whether kube-apiserver has sent the complete set since the start of the process.
func (s *Store) isCurrent(of scope) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.getOrAddSet(of).current
}

// noteContact records that kube-apiserver has sent something about the node's pods. The caller holds the lock.
func (s *Store) noteContact(now time.Time) {
	s.lastContact, s.lastContactHere = now.Round(0), time.Now()
	var kept time.Time
	_ = kept.UnmarshalText(s.values[keyHeard]) // it is zero if there is none
	if age := now.Sub(kept); age < 0 || age > s.contactPrecision {
		s.recordValue(keyHeard, textOf(now))
	}
}

// textOf returns the form of a time on the disk.
func textOf(at time.Time) []byte {
	text, _ := at.MarshalText() // the clock of a machine does not reach the year 10000
	return text
}

// dropSet removes a set that no pod names any longer, or that is too large.
func (s *Store) dropSet(of scope) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sets[of] != nil {
		s.remove(of)
	}
}

// remove removes a set, also from the disk. The caller holds the lock.
func (s *Store) remove(of scope) {
	for name := range s.getOrAddSet(of).objects {
		s.recordObject(of, name, nil)
	}
	s.recordChange(of.key(keySet), change{in: of})
	delete(s.sets, of)
}

// selectPending returns the changes to write: those of the node's pods and Node, and of other sets about commitBytes,
// each set whole. Of the equally urgent ones, first come the sets of the namespace that has the least to write, and of
// these the smallest, so that one tenant's objects do not use up what all may write. left is how many bytes may be
// written now; see urgency.
func (s *Store) selectPending(left int64) changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken, groups, sizes, ofTenant := changes{}, map[group]changes{}, map[group]int64{}, map[string]int64{}
	own, used := []scope{podScope(s.node), objectScope(nodes, "", s.node)}, map[string]bool{}
	for name := range s.getOrAddSet(own[0]).objects {
		used[name.Namespace] = true
	}
	for key, made := range s.pending {
		if isLasting(key) { // pendingRemovals returns those
			continue
		}
		if slices.Contains(own, made.in) {
			taken[key] = made
			continue
		}
		of := s.groupOf(key, made, used)
		if groups[of] == nil {
			groups[of] = changes{}
		}
		groups[of][key] = made
		size := int64(len(key) + made.size())
		sizes[of], ofTenant[of.tenant] = sizes[of]+size, ofTenant[of.tenant]+size
	}
	most := min(left, commitBytes) // a larger debt would hold up the next commit for longer
	for _, of := range slices.SortedFunc(maps.Keys(groups), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.urgency, b.urgency), cmp.Compare(ofTenant[a.tenant], ofTenant[b.tenant]),
			cmp.Compare(sizes[a], sizes[b]))
	}) {
		if most >= 0 && (left > hourlyBytes/2 || of.urgency == first ||
			of.urgency == known && sizes[of] <= left/knownShare) {
			maps.Copy(taken, groups[of])
			most -= sizes[of]
		}
	}
	return taken
}

// group is the changes of one set that are equally urgent.
type group struct {
	// set names the set, or the change if it is of no set. tenant is the set's namespace, or set.
	set, tenant string
	urgency
}

// urgency is how soon a change must be on the disk.
type urgency int

const (
	// first is a set that has never been on the disk, as of a new pod, and what is of no set.
	first urgency = iota
	// known is a set that was. It waits until half of the hourly bytes are left, or knownShare times its size, so that
	// large objects that change all the time do not use up what new pods need.
	known
	// idle is written only while half of the hourly bytes are left.
	idle
)

const knownShare = 16

// groupOf returns the group of a change. What accounts read is idle, unless they may not read it any longer, and so are
// Services that are not in the namespaces of the node's pods. The version of Services waits for all of them: after a
// start, kube-apiserver is asked for what is newer than the version on the disk. The caller holds the lock.
func (s *Store) groupOf(key string, made *change, used map[string]bool) group {
	if made.in.kind == nil {
		return group{key, key, first}
	}
	of := group{set: made.in.key("")}
	of.tenant = cmp.Or(made.in.namespace, of.set)
	in, ofService := s.sets[made.in], made.in.kind == services
	switch {
	case in == nil || in.version == 0: // it was dropped
		of.urgency = first
	case made.in.kind.account != "":
		of.urgency = idle
	case !in.saved, ofService && (used[made.name.Namespace] ||
		made.name == types.NamespacedName{Namespace: "default", Name: "kubernetes"}):
		of.urgency = first
	case ofService:
		of.urgency = idle
	default:
		of.urgency = known
	}
	return of
}

// changes are changes by their keys.
type changes map[string]*change

// values returns the changes in the form of the disk, with nil for a removed key.
func (c changes) values() map[string][]byte {
	values := make(map[string][]byte, len(c))
	for key, made := range c {
		values[key] = made.bytes()
	}
	return values
}

// pendingRemovals returns the changes of gone pods that are not on the disk.
func (s *Store) pendingRemovals() changes {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := changes{}
	for key, made := range s.pending {
		if isLasting(key) {
			taken[key] = made
		}
	}
	return taken
}

// noteStateSaved notes that what wholeState has returned is on the disk: the changes from before need not be written
// again. Gone pods must be in the older file too.
func (s *Store) noteStateSaved() {
	maps.DeleteFunc(s.inState, func(key string, _ *change) bool { return isLasting(key) })
	s.noteSaved(s.inState)
	s.inState = nil
}

// noteSaved notes that changes are on the disk. Their keys may have changed again since.
func (s *Store) noteSaved(saved changes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, made := range saved {
		if made.versionOf != nil {
			made.versionOf.saved = true
		}
		if s.pending[key] == made {
			delete(s.pending, key)
		}
	}
}

// wholeState returns the whole state in the form of the disk. Objects are encoded one by one.
func (s *Store) wholeState() iter.Seq2[string, []byte] {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetRemovals()
	s.inState = maps.Clone(s.pending)
	state := map[string]change{}
	for key, value := range s.values {
		state[key] = change{value: value}
	}
	for in, set := range s.sets {
		if set.version > 0 { // it may be newer than the value
			state[in.key(keySet)] = change{value: strconv.AppendUint(nil, set.version, 10)}
		}
		for name, o := range set.objects {
			state[objectKey(in, name)] = change{object: o}
		}
	}
	return func(yield func(string, []byte) bool) {
		for key, entry := range state {
			if !yield(key, entry.bytes()) {
				return
			}
		}
	}
}

// now returns the time of the clock, or a lower bound of the time if the clock is behind that, for example after a loss
// of power without a battery. The bounds are the last contact with kube-apiserver, and the times at which it issued the
// tokens, each plus the time that has passed in this process since; and the beginning of the kubelet's certificate.
func (s *Store) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	atLeast := func(bound time.Time) {
		if bound.After(now) {
			now = bound
		}
	}
	atLeast(s.lastContact.Add(time.Since(s.lastContactHere)))
	atLeast(s.certified)
	for _, kept := range s.tokens {
		if atLeast(kept.Issued); !kept.fetched.IsZero() {
			atLeast(kept.Issued.Add(time.Since(kept.fetched)))
		}
	}
	return now
}

// covering returns a set that covers a scope: its own, or that of all objects of the kind, in the namespace or the
// cluster; nil if kube-apiserver has never sent any of these completely. The caller holds the lock.
func (s *Store) covering(of scope) *set {
	for _, other := range []scope{of, {kind: of.kind, namespace: of.namespace}, {kind: of.kind}} {
		if set := s.sets[other]; set != nil && set.version > 0 {
			return set
		}
	}
	return nil
}

// readScope returns the version of a scope and its objects, sorted, without pods that are gone. ok is false if
// kube-apiserver has never sent it completely.
func (s *Store) readScope(of scope) (version uint64, objects []*wire.Object, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.covering(of)
	if set == nil {
		return 0, nil, false
	}
	for _, o := range set.objects {
		selected, err := true, error(nil)
		if set != s.sets[of] {
			selected, err = of.selects(o)
		}
		if err != nil {
			return 0, nil, false
		}
		if selected && !s.isGone(of.kind, o) {
			objects = append(objects, o)
		}
	}
	slices.SortFunc(objects, (*wire.Object).Compare)
	return set.version, objects, true
}

// isGone reports whether an object is a pod that is gone. The caller holds the lock.
func (s *Store) isGone(k *kind, o *wire.Object) bool {
	return s.removals[types.UID(o.UID)].outcome > refused && k.GroupVersionResource == pods.GroupVersionResource
}

// kindOf returns the kind that a request is for, with k's account and getOnly; nil if that is not kept.
func (s *Store) kindOf(info serve.RequestInfo, k kind) *kind {
	k.resource = &resource{GroupVersionResource: schema.GroupVersionResource{
		Group: info.Group, Version: info.Version, Resource: info.Resource}}
	return s.kinds[k.key()]
}

// getObject returns the one object that a request is for; nil if kube-apiserver has not shown it to the account.
func (s *Store) getObject(info serve.RequestInfo, account string) *wire.Object {
	return s.findObject(types.NamespacedName{Namespace: info.Namespace, Name: info.Name},
		s.kindOf(info, kind{account: account}), s.kindOf(info, kind{account: account, getOnly: true}))
}

// findObject returns one object of the first kind that has it; nil if kube-apiserver has not sent it. A list that
// covers the object is never behind, so it takes precedence over objects that are fetched from time to time.
func (s *Store) findObject(name types.NamespacedName, among ...*kind) *wire.Object {
	for _, k := range among {
		if _, objects, ok := s.readScope(objectScope(k, name.Namespace, name.Name)); ok {
			return append(objects, nil)[0]
		}
		if o := s.anyObject(k, name); o != nil {
			return o
		}
	}
	return nil
}

// anyObject returns an object of any set.
func (s *Store) anyObject(k *kind, name types.NamespacedName) *wire.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k == nil || namedByPods[k] { // its sets have one object each, and there may be thousands
		return nil
	}
	for of, set := range s.sets {
		if of.kind == k && set.version > 0 && set.objects[name] != nil && !s.isGone(k, set.objects[name]) {
			return set.objects[name]
		}
	}
	return nil
}

func tokenKey(request tokenRequest) string {
	name, _ := json.Marshal(request) //nolint:errchkjson // strings and a number
	return keyOf(keyToken, string(name))
}

func (s *Store) putToken(request tokenRequest, kept token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens[request] = kept
	text, _ := json.Marshal(kept) //nolint:errchkjson // it is nil if one of its times is beyond the year 9999
	s.recordValue(tokenKey(request), text)
}

func (s *Store) token(request tokenRequest) (token, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, ok := s.tokens[request]
	return kept, ok
}

// dropTokens removes the tokens that no pod names any longer.
func (s *Store) dropTokens(wanted needs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for request := range s.tokens {
		if _, ok := wanted[request]; !ok {
			delete(s.tokens, request)
			s.recordValue(tokenKey(request), nil)
		}
	}
}
