package docs

import (
	"strings"
	"testing"

	"github.com/application-grid/application-grid/test/suite"
)

func TestBlocks(t *testing.T) {
	fence := "```"
	page := strings.Join([]string{
		"text", fence + "sh", "a", "b", fence, fence + "console", "no", fence, "1. item", "",
		"   " + fence + `sh on=node exit=3`, "   c", "     d", "   " + fence,
		fence + `sh no-run="needs a moon"`, "e", fence,
	}, "\n")
	blocks, err := BlocksOf("p.md", page)
	suite.Must(t, err)
	want := []Block{
		{Page: "p.md", Line: 2, Script: "a\nb\n"},
		{Page: "p.md", Line: 11, Script: "c\n  d\n", OnNode: true, Exit: 3},
		{Page: "p.md", Line: 15, Script: "e\n", NoRun: "needs a moon"},
	}
	if len(blocks) != len(want) {
		t.Fatalf("got %+v", blocks)
	}
	for i, b := range blocks {
		if b != want[i] {
			t.Errorf("got %+v, want %+v", b, want[i])
		}
	}
	for _, bad := range []string{"sh on=moon", "sh exit=x", `sh no-run=""`, "sh off", "bash"} {
		if blocks, err := BlocksOf("p.md", fence+bad+"\na\n"+fence); err == nil {
			t.Errorf("%s: got %+v", bad, blocks)
		}
	}
	if _, err := BlocksOf("p.md", fence+"sh\na\n"); err == nil {
		t.Error("a block without an end was taken")
	}
}
