package gridview

import "testing"

func TestObjectNames(t *testing.T) {
	for want, object := range map[string]Object{
		"Service shop/db": {Kind: "Service", Namespace: "shop", Name: "db"},
		"Node n1":         {Kind: "Node", Name: "n1"},
		"Pod in shop":     {Kind: "Pod", Namespace: "shop"},
		"Pod":             {Kind: "Pod"},
	} {
		if got := object.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
