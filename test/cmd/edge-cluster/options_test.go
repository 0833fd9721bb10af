package main

import "testing"

func TestParseNodes(t *testing.T) {
	nodes, err := parseNodes("a=u1, b=u2", "site")
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 2 || nodes[0].Name != "a" || nodes[1].Name != "b" || nodes[1].Labels["site"] != "u2" {
		t.Errorf("got %+v", nodes)
	}
	for _, bad := range []string{"", "a", "a=", "=u", "a=u,,b=u"} {
		if _, err := parseNodes(bad, "site"); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
