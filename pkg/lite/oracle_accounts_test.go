package lite

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// questions are what accounts ask in TestAccountsOracle.
var questions = []string{
	"/api/v1/pods", "/api/v1/namespaces/shop/pods", "/api/v1/namespaces/other/pods",
	"/api/v1/namespaces/shop/pods/pod-1", "/api/v1/namespaces/shop/pods/pod-2",
	"/api/v1/pods?fieldSelector=metadata.name%3Dpod-2", "/api/v1/pods?fieldSelector=metadata.namespace%3Dshop",
	"/api/v1/nodes", "/api/v1/namespaces/shop/secrets",
}

// reading is a world in which accounts read, each something else.
type reading struct {
	*world

	// given has what accounts were given, by the keys of the scopes.
	given map[string]bool
}

func (w *reading) request(question string) *http.Request {
	r, err := http.NewRequest(http.MethodGet, "https://x"+question, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *reading) any() (account, question string) {
	return w.accounts[w.random.IntN(len(w.accounts))].String(), questions[w.random.IntN(len(questions))]
}

// in returns the pods of a version that are in a scope, by name.
func (w *reading) in(of scope, version uint64) map[string]string {
	found := map[string]string{}
	for name, uid := range w.truth[version] {
		selected, err := of.selects(&wire.Object{Namespace: "shop", Name: name})
		if err != nil {
			w.t.Fatal(err)
		}
		if selected && of.kind.Resource == "pods" {
			found[name] = uid
		}
	}
	return found
}

// ofAccounts returns a scope that an account has asked for; ok is false if there is none.
func (w *reading) ofAccounts() (of scope, ok bool) {
	var all []scope
	for of := range w.store.scopes() {
		if of.kind.account != "" {
			all = append(all, of)
		}
	}
	if len(all) == 0 {
		return scope{}, false
	}
	return all[w.random.IntN(len(all))], true
}

// follow brings one scope of an account up to date.
func (w *reading) follow() {
	of, ok := w.ofAccounts()
	if !ok {
		return
	}
	var objects []*wire.Object
	for name := range w.in(of, w.version) {
		objects = append(objects, w.pod(name))
	}
	to := sink{w.store, of}
	to.ChangeAt(strconv.FormatUint(w.version, 10), func() { to.Replace(objects) })
	w.given[of.key("")] = true
}

// forbid takes from an account what it was given.
func (w *reading) forbid() {
	if of, ok := w.ofAccounts(); ok {
		w.store.dropSet(of)
		w.commit()
		delete(w.given, of.key(""))
	}
}

// mayHave reports whether an account was given an object, or the scope if it is nil.
func (w *reading) mayHave(of scope, o *wire.Object) bool {
	for _, other := range []scope{of, {kind: of.kind, namespace: of.namespace}, {kind: of.kind}} {
		if w.given[other.key("")] {
			return true
		}
	}
	if o == nil {
		return false
	}
	for known := range w.store.scopes() {
		if known.kind.key() != of.kind.key() || !w.given[known.key("")] {
			continue
		}
		if selected, err := known.selects(o); err == nil && selected {
			return true
		}
	}
	return false
}

// judge asks all that each account could ask.
func (w *reading) judge(seed uint64) {
	for _, account := range w.accounts {
		for _, question := range questions {
			w.judgeOne(fmt.Sprintf("seed %d: %s, %s", seed, account, question), account.String(), question)
		}
	}
}

func (w *reading) judgeOne(what, account, question string) {
	r := w.request(question)
	of, ok := w.store.scopeOf(r, account)
	info := serve.ParseRequest(r)
	if !ok {
		if info.Resource != "secrets" {
			w.t.Fatalf("%s: it cannot be kept", what)
		}
		return
	}
	if info.Name != "" {
		o := w.store.getObject(info, account)
		if o == nil {
			return
		}
		listed := objectScope(w.store.kindOf(info, kind{account: account}), info.Namespace, info.Name)
		if !w.given[of.key("")] && !w.mayHave(listed, o) {
			w.t.Fatalf("%s: it is answered %s, which it was not given", what, o.UID)
		}
		if version, _, ok := w.store.readScope(listed); ok && w.truth[version][o.Name] != o.UID {
			w.t.Fatalf("%s: it is answered %s, and a list at %d has not that", what, o.UID, version)
		}
		return
	}
	version, objects, ok := w.store.readScope(of)
	if !ok {
		return
	}
	if !w.mayHave(of, nil) {
		w.t.Fatalf("%s: it is answered a list that it was not given", what)
	}
	want := w.in(of, version)
	for _, o := range objects {
		if want[o.Name] != o.UID {
			w.t.Fatalf("%s: at %d it is answered %s %s, and there are %v", what, version, o.Name, o.UID, want)
		}
	}
	if len(want) != len(objects) {
		w.t.Fatalf("%s: at %d it is answered %d objects, and there are %v", what, version, len(objects), want)
	}
}

// TestAccountsOracle plays kube-apiserver, losses of power, and three accounts that read, each something else, and may
// not read any more. Whatever an account asks, it is answered what it was given, at one version, or nothing.
func TestAccountsOracle(t *testing.T) {
	t.Parallel()
	answered := 0
	for seed := range uint64(*worlds / 2) {
		w := &reading{newWorld(t, rand.New(rand.NewPCG(seed, 9))), map[string]bool{}}
		w.accounts = []types.NamespacedName{{Namespace: "a", Name: "dns"}, {Namespace: "a", Name: "cni"},
			{Namespace: "b", Name: "dns"}}
		w.start()
		for range 150 {
			switch w.random.IntN(12) {
			case 0: // a loss of power
				if err := w.disk.Close(); err != nil {
					t.Fatal(err)
				}
				w.start()
			case 1, 2:
				account, question := w.any()
				if of, ok := w.store.scopeOf(w.request(question), account); ok {
					w.store.noteScope(of, time.Now())
				}
			case 3, 4, 5:
				w.follow()
			case 6, 7:
				w.commit()
			case 8:
				w.forbid()
			case 9:
				w.list() // the kubelet's
			default:
				w.change()
			}
			w.judge(seed)
		}
		for of := range w.store.scopes() {
			if _, objects, ok := w.store.readScope(of); ok && of.kind.account != "" && len(objects) > 0 {
				answered++
			}
		}
		if err := w.disk.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if answered == 0 {
		t.Error("no list with objects is answered at the end of any world")
	}
}
