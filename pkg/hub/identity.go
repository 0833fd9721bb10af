package hub

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

// nodeUserPrefix begins the user names of kubelets' credentials.
const nodeUserPrefix = "system:node:"

// guardShares marks users whom the front proxy has authenticated, and puts an authorizer before the one that asks
// kube-apiserver.
func guardShares(config *genericapiserver.Config, options Config) {
	callers := &shareAuthorizer{next: config.Authorization.Authorizer, options: options}
	if headers := config.Authentication.RequestHeaderConfig; headers != nil {
		front := headerrequest.NewDynamicVerifyOptionsSecure(headers.CAContentProvider.VerifyOptions,
			headers.AllowedClientNames, headers.UsernameHeaders, headers.UIDHeaders, headers.GroupHeaders,
			headers.ExtraHeaderPrefixes)
		others := config.Authentication.Authenticator
		config.Authentication.Authenticator = authenticator.RequestFunc(
			func(r *http.Request) (*authenticator.Response, bool, error) {
				// An error means that the certificate is not the front proxy's. The other authenticators handle it.
				if response, ok, err := front.AuthenticateRequest(r); err == nil && ok {
					response.User = fronted{response.User}
					return response, true, nil
				}
				return others.AuthenticateRequest(r)
			})
	}
	config.Authorization.Authorizer = authorizer.AuthorizerFunc(callers.authorize)
}

// fronted is a user who came with the front proxy's certificate. kube-apiserver has authenticated the user and
// authorized the request.
type fronted struct{ user.Info }

// shareAuthorizer is the hub's authorizer. It refuses credentials of a node the share of another one, and
// ServiceAccount tokens that are not bound to a node every share. Other requests from the front proxy were authorized
// by kube-apiserver; for the rest it asks kube-apiserver.
type shareAuthorizer struct {
	// next asks kube-apiserver.
	next    authorizer.Authorizer
	options Config
}

func (c *shareAuthorizer) authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetAPIGroup() == hubv1alpha1.GroupName && a.IsResourceRequest() {
		if reason := c.refusal(a); reason != "" {
			return authorizer.DecisionDeny, reason, nil
		}
		if _, ok := a.GetUser().(fronted); ok && !c.options.ReviewAll {
			return authorizer.DecisionAllow, "the API server has authorized what it handed on", nil
		}
	}
	return c.next.Authorize(ctx, a)
}

// refusal returns why credentials may not ask for a share, whatever RBAC allows; "" if they may.
func (c *shareAuthorizer) refusal(a authorizer.Attributes) string {
	u := a.GetUser()
	nodes := nodesOf(u)
	other := slices.IndexFunc(nodes, func(node string) bool { return node != a.GetName() })
	switch {
	case other >= 0:
		return fmt.Sprintf("these credentials are bound to the node %q, and may ask for its share only", nodes[other])
	case len(nodes) == 0 && !c.options.AllowUnboundTokens && u != nil &&
		strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix):
		return "this ServiceAccount token is bound to no node, or the API server does not say to which, without " +
			"--requestheader-extra-headers-prefix; use the token of a pod, or allow others with --allow-unbound-tokens"
	}
	return ""
}

// nodesOf returns the nodes to which credentials are bound.
func nodesOf(u user.Info) []string {
	if u == nil {
		return nil
	}
	// kube-apiserver gives the node to which a token is bound: that of the token's pod. The aggregator passes it on.
	nodes := slices.Clone(u.GetExtra()[serviceaccount.NodeNameKey])
	name, ok := strings.CutPrefix(u.GetName(), nodeUserPrefix)
	if ok && slices.Contains(u.GetGroups(), user.NodesGroup) {
		nodes = append(nodes, name)
	}
	return nodes
}
