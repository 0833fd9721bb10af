package docs

import (
	"strings"
	"testing"
)

func TestBlocks(t *testing.T) {
	fence := "```"
	page := strings.Join([]string{
		"text", fence + "sh", "a", "b", fence, fence + "console", "no", fence, "1. item", "",
		"   " + fence + `sh on=node exit=3`, "   c", "     d", "   " + fence,
		fence + `sh no-run="needs a moon"`, "e", fence,
	}, "\n")
	blocks, err := blocksOf("p.md", page)
	if err != nil {
		t.Fatal(err)
	}
	want := []block{
		{page: "p.md", line: 2, script: "a\nb\n"},
		{page: "p.md", line: 11, script: "c\n  d\n", onNode: true, exit: 3},
		{page: "p.md", line: 15, script: "e\n", noRun: "needs a moon"},
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
		if blocks, err := blocksOf("p.md", fence+bad+"\na\n"+fence); err == nil {
			t.Errorf("%s: got %+v", bad, blocks)
		}
	}
	if _, err := blocksOf("p.md", fence+"sh\na\n"); err == nil {
		t.Error("a block without an end was taken")
	}
}
