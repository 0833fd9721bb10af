package facts_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestShareOfABrokenStep: a step of a share that panics half-way ends its stream, and so does every later step of it,
// such as a sign of life: none says that what is missing is known. The next stream begins with nothing, and brings all.
func TestShareOfABrokenStep(t *testing.T) {
	armed, broken := false, 0
	store := storagetest.New(storagetest.Options{
		NodeName: "node0", KeepKubernetesEndpoint: true,
		Broken: func(error) { broken++ }, Panics: func() bool { return armed },
	})
	step := func(after, mark string, whole bool, services ...*wire.Object) error {
		s := facts.ShareStep{
			Objects: map[string]map[types.NamespacedName]*wire.Object{}, Mark: []byte(mark),
			Drops: func(string, types.NamespacedName) bool { return whole },
		}
		if after != "" {
			s.Base = []byte(after)
		}
		for _, o := range services {
			s.Put(facts.InputServices, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, o)
		}
		return store.ApplyShare(s)
	}
	known := func() (names []types.NamespacedName) {
		store.Read(func(in facts.Reader) { names = in.Names(served.Services) })
		return names
	}
	if err := step("", "1", true, wiretest.Service("a", "")); err != nil {
		t.Fatal(err)
	}
	if broken != 0 {
		t.Fatal("a step that does not panic is called broken")
	}
	bad := []*wire.Object{wiretest.Service("b", "bad"), wiretest.Service("c", "bad"), wiretest.Service("d", "bad")}
	armed = true // reading the first annotation that does not parse is where the step panics
	err := step("1", "2", false, bad...)
	armed = false
	if err == nil || broken == 0 {
		t.Fatalf("the step broke %d times, and said %v", broken, err)
	}
	if len(known()) == 4 {
		t.Fatal("nothing is missing, so this shows nothing")
	}
	if err := step("2", "2", false); err == nil { // a sign of life, 30 s later
		t.Error("the stream goes on")
	}
	if mark := store.ShareMark(); mark != nil {
		t.Errorf("the mark is %q, which says that all is known", mark)
	}
	if err := step("", "3", true, append(bad, wiretest.Service("a", ""))...); err != nil || len(known()) != 4 {
		t.Errorf("the next stream: %v, known is %v", err, known())
	}
}
