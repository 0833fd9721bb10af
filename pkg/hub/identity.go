package hub

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

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

// boundNodes refuses credentials that belong to a node the share of another one. Of the rest it has no opinion.
type boundNodes struct{}

// Authorize implements authorizer.Authorizer.
func (boundNodes) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetAPIGroup() != hubv1alpha1.GroupName || !a.IsResourceRequest() {
		return authorizer.DecisionNoOpinion, "", nil
	}
	for _, node := range nodesOf(a.GetUser()) {
		if node != a.GetName() {
			return authorizer.DecisionDeny, fmt.Sprintf(
				"these credentials are bound to the node %q, and may ask for its share only", node,
			), nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (b boundNodes) ConditionsAwareAuthorize(
	ctx context.Context, a authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(b.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer. It has none.
func (boundNodes) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
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
