package hub

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/sync/singleflight"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/union"
	genericapiserver "k8s.io/apiserver/pkg/server"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

const (
	// extraNodeName is where kube-apiserver says which node a token is bound to: that of the pod which has the token.
	// The aggregator hands it on.
	extraNodeName = "authentication.kubernetes.io/node-name"
	// nodesGroup and nodeUserPrefix are of the credentials of kubelets.
	nodesGroup     = "system:nodes"
	nodeUserPrefix = "system:node:"
)

// identify lets the hub know whom the front proxy vouches for, and puts the authorizers together: first which node
// credentials are bound to, then what kube-apiserver has authorized, then kube-apiserver again for those who come by
// themselves.
func identify(config *genericapiserver.Config, options Config) error {
	bound := boundNodes{allowUnbound: options.AllowUnboundTokens, bindable: func() bool { return true }}
	if headers := config.Authentication.RequestHeaderConfig; headers != nil {
		bound.bindable = func() bool { return len(headers.ExtraHeaderPrefixes.Value()) > 0 }
		config.Authentication.Authenticator = fronts{
			front: headerrequest.NewDynamicVerifyOptionsSecure(headers.CAContentProvider.VerifyOptions,
				headers.AllowedClientNames, headers.UsernameHeaders, headers.UIDHeaders, headers.GroupHeaders,
				headers.ExtraHeaderPrefixes),
			others: config.Authentication.Authenticator,
		}
	}
	var err error
	config.Authorization.Authorizer, err = union.New(
		union.NamedAuthorizer{AuthorizerName: "BoundNodes", Authorizer: authorizer.AuthorizerFunc(bound.authorize)},
		union.NamedAuthorizer{AuthorizerName: "FrontProxy", Authorizer: authorizer.AuthorizerFunc(
			func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if _, ok := a.GetUser().(fronted); ok && !options.ReviewAll &&
					a.GetAPIGroup() == hubv1alpha1.GroupName {
					return authorizer.DecisionAllow, "the API server has authorized what it handed on", nil
				}
				return authorizer.DecisionNoOpinion, "", nil
			},
		)},
		union.NamedAuthorizer{AuthorizerName: "Delegated", Authorizer: authorizer.AuthorizerFunc(
			(&once{next: config.Authorization.Authorizer}).authorize,
		)},
	)
	if err != nil {
		return fmt.Errorf("putting the authorizers together: %w", err)
	}
	return nil
}

// fronts tells callers whom the front proxy vouches for from others.
type fronts struct{ front, others authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (f fronts) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	// An error means that the certificate is not the front proxy's. The others say what it is.
	if response, ok, err := f.front.AuthenticateRequest(r); err == nil && ok {
		response.User = fronted{response.User}
		return response, true, nil
	}
	return f.others.AuthenticateRequest(r)
}

// fronted is a user who came with the front proxy's certificate. kube-apiserver has authenticated the user and
// authorized the request.
type fronted struct{ user.Info }

// once asks for equal reviews that come at one time once.
type once struct {
	next  authorizer.Authorizer
	group singleflight.Group
}

func (o *once) authorize(
	ctx context.Context, a authorizer.Attributes,
) (made authorizer.Decision, reason string, err error) {
	u := a.GetUser()
	if u == nil {
		return o.next.Authorize(ctx, a)
	}
	key := fmt.Sprintf("%q %q %q %q %q", []string{u.GetName(), u.GetUID()}, u.GetGroups(), u.GetExtra(), []string{
		a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetSubresource(), a.GetNamespace(),
		a.GetName(), a.GetPath(),
	}, fmt.Sprint(a.GetFieldSelector())+fmt.Sprint(a.GetLabelSelector()))
	answer, err, _ := o.group.Do(key, func() (any, error) {
		// The review goes on for the others when the caller that began it leaves.
		made, reason, err := o.next.Authorize(context.WithoutCancel(ctx), a)
		return func() (authorizer.Decision, string) { return made, reason }, err
	})
	if decision, ok := answer.(func() (authorizer.Decision, string)); ok {
		made, reason = decision()
	}
	return made, reason, err
}

// boundNodes refuses credentials that belong to a node the share of another one, and ServiceAccount tokens that are
// bound to none. Of the rest it has no opinion.
type boundNodes struct {
	// allowUnbound lets ServiceAccount tokens that are bound to no node ask for every node's share.
	allowUnbound bool
	// bindable reports whether the API server says which node a token is bound to.
	bindable func() bool
}

func (b boundNodes) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetAPIGroup() != hubv1alpha1.GroupName || !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	u := a.GetUser()
	nodes := nodesOf(u)
	other := slices.IndexFunc(nodes, func(node string) bool { return node != a.GetName() })
	switch {
	case other >= 0:
		return authorizer.DecisionDeny, fmt.Sprintf(
			"these credentials are bound to the node %q, and may ask for its share only", nodes[other],
		), nil
	case len(nodes) > 0, b.allowUnbound, u == nil,
		!strings.HasPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix):
		return authorizer.DecisionNoOpinion, "", nil
	case !b.bindable():
		return authorizer.DecisionDeny, "the API server does not say which node a token is bound to: it has no " +
			"--requestheader-extra-headers-prefix", nil
	default:
		return authorizer.DecisionDeny, "this ServiceAccount token is bound to no node; use that of a pod, or allow " +
			"such tokens with --allow-unbound-tokens", nil
	}
}

// nodesOf are the nodes that credentials are bound to, of which there is one at most.
func nodesOf(u user.Info) []string {
	if u == nil {
		return nil
	}
	nodes := slices.Clone(u.GetExtra()[extraNodeName])
	if name, ok := strings.CutPrefix(u.GetName(), nodeUserPrefix); ok && slices.Contains(u.GetGroups(), nodesGroup) {
		nodes = append(nodes, name)
	}
	return nodes
}
