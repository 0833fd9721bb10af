package hub

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

// TestUnboundTokens: a ServiceAccount token that is bound to no node is refused with a reason that says what to change,
// unless a flag allows such tokens. Of people the hub has no opinion.
func TestUnboundTokens(t *testing.T) {
	t.Parallel()
	const wrapper = "system:serviceaccount:edge:wrapper"
	tokenOf := func(nodes ...string) *user.DefaultInfo {
		return &user.DefaultInfo{Name: wrapper, Extra: map[string][]string{serviceaccount.NodeNameKey: nodes}}
	}
	for name, test := range map[string]struct {
		user    *user.DefaultInfo
		allowed bool
		denied  string // part of the reason; empty if it is asked what RBAC permits
	}{
		"unbound":          {user: tokenOf(), denied: "--allow-unbound-tokens"},
		"unbound, allowed": {user: tokenOf(), allowed: true},
		"bound":            {user: tokenOf("a1")},
		"bound to another": {user: tokenOf("b1"), denied: `"b1"`},
		"bound twice":      {user: tokenOf("a1", "b1"), denied: `"b1"`},
		"allowed, another": {user: tokenOf("b1"), allowed: true, denied: `"b1"`},
		"a person":         {user: &user.DefaultInfo{Name: "alice"}},
		"no extra headers": {user: tokenOf(), denied: "--requestheader-extra-headers-prefix"},
	} {
		asked := authorizer.AuthorizerFunc(
			func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", nil
			})
		callers := &shareAuthorizer{next: asked, options: Config{AllowUnboundTokens: test.allowed}}
		made, reason, err := callers.authorize(t.Context(), authorizer.AttributesRecord{
			User: test.user, APIGroup: hubv1alpha1.GroupName, Resource: "shares", Name: "a1", Verb: "watch",
			ResourceRequest: true,
		})
		want := authorizer.DecisionNoOpinion
		if test.denied != "" {
			want = authorizer.DecisionDeny
		}
		if err != nil || made != want || !strings.Contains(reason, test.denied) {
			t.Errorf("%s: %v %q %v, want %v with %q", name, made, reason, err, want, test.denied)
		}
	}
}

// TestWhoIsReviewed: kube-apiserver is asked what callers may do, but for requests of the group that it has handed on,
// unless a flag has it asked about these too.
func TestWhoIsReviewed(t *testing.T) {
	t.Parallel()
	alice := &user.DefaultInfo{Name: "alice"}
	for name, test := range map[string]struct {
		user      user.Info
		group     string
		reviewAll bool
		reviewed  bool
	}{
		"directly":                    {alice, hubv1alpha1.GroupName, false, true},
		"handed on":                   {fronted{alice}, hubv1alpha1.GroupName, false, false},
		"handed on, all are reviewed": {fronted{alice}, hubv1alpha1.GroupName, true, true},
		"handed on, of another group": {fronted{alice}, "example.com", false, true},
	} {
		reviewed := false
		callers := &shareAuthorizer{options: Config{ReviewAll: test.reviewAll}, next: authorizer.AuthorizerFunc(
			func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				reviewed = true
				return authorizer.DecisionNoOpinion, "", nil
			})}
		made, reason, err := callers.authorize(t.Context(), authorizer.AttributesRecord{
			User: test.user, APIGroup: test.group, Resource: "shares", Name: "a1", Verb: "watch", ResourceRequest: true,
		})
		if err != nil || reviewed != test.reviewed || reviewed && made == authorizer.DecisionAllow {
			t.Errorf("%s: reviewed %v, %v %q %v", name, reviewed, made, reason, err)
		}
	}
}
