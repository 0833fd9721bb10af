package enumerate

import "testing"

func TestFirst(t *testing.T) {
	for _, test := range []struct {
		names []string
		most  int
		want  string
	}{
		{nil, 3, ""},
		{[]string{"a"}, 3, "a"},
		{[]string{"a", "b", "c"}, 3, "a, b, c"},
		{[]string{"a", "b", "c", "d"}, 3, "a, b, c and 1 more"},
		{[]string{"a", "b", "c", "d"}, 1, "a and 3 more"},
		{[]string{"", "b", "c"}, 2, `"", b and 1 more`},
	} {
		if got := First(test.names, test.most); got != test.want {
			t.Errorf("the first %d of %q are %q, want %q", test.most, test.names, got, test.want)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0 sites", 1: "1 site", 2: "2 sites"} {
		if got := Count(n, "site"); got != want {
			t.Errorf("%d of a site is %q, want %q", n, got, want)
		}
	}
}
