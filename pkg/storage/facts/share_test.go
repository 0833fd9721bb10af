package facts

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestSwitchTakesTheMark: what is followed after Switch is named by its own mark, and by none if it is no share. With
// another mark the hub would send too little of what a snapshot lacks.
func TestSwitchTakesTheMark(t *testing.T) {
	f := New(Options{})
	f.FollowShare()
	step := func(mark string) {
		t.Helper()
		step := ShareStep{Whole: func(string, types.NamespacedName) bool { return true }, Mark: []byte(mark)}
		step.After = f.ShareMark()
		if err := f.ApplyShare(step); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what, want string) {
		t.Helper()
		f.Read(func(in Reader) {
			if got := string(in.ShareMarkOf()); got != want {
				t.Errorf("%s: got %q, want %q", what, got, want)
			}
		})
	}
	step("one")
	expect("a share", "one")
	f.Switch()
	expect("the cluster, in its place", "")
	step("two")
	expect("the cluster, while a share comes", "")
	f.Switch()
	expect("that share", "two")
}
