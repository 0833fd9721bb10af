package install

import (
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
)

// TestFlowControl: kube-apiserver puts the requests of wrappers and daemons, and nobody else's, into the flow that the
// manifests have for them.
func TestFlowControl(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{
		Nodes: []cluster.NodeSpec{{Name: "a1", Labels: map[string]string{siteLabel: "site-a"}}},
	}, "application-grid-wrapper", "statefulset-grid-daemon")
	f.kubectl("apply", "-k", filepath.Join(manifests, "flow-control"), "--validate=strict")
	const name = "application-grid-nodes"
	flow, err := f.client.FlowcontrolV1().FlowSchemas().Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	level, err := f.client.FlowcontrolV1().PriorityLevelConfigurations().Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)

	for _, test := range []struct {
		who         string
		impersonate rest.ImpersonationConfig
		role        cluster.Role
		ours        bool
	}{
		{"the wrapper", rest.ImpersonationConfig{}, cluster.RoleWrapper, true},
		{"the daemon", rest.ImpersonationConfig{}, cluster.RoleDNSDaemon, true},
		{"a certificate of the group", rest.ImpersonationConfig{UserName: "edge-1",
			Groups: []string{"application-grid:nodes", "system:authenticated"}}, cluster.RoleAdmin, true},
		{"the controller", rest.ImpersonationConfig{}, cluster.RoleController, false},
		{"the wrapper's namesake", rest.ImpersonationConfig{UserName: "system:serviceaccount:default:application-grid-wrapper", Groups: []string{"system:authenticated"}}, cluster.RoleAdmin, false},
		{"kube-proxy", rest.ImpersonationConfig{}, cluster.RoleKubeProxy, false},
	} {
		config := f.Cluster.RESTConfig()
		config.BearerToken, config.Impersonate = f.Cluster.Token(test.role), test.impersonate
		client, err := rest.HTTPClientFor(config)
		f.Must(err)
		f.Eventually("kube-apiserver has noticed, for "+test.who, func() error {
			request, err := http.NewRequestWithContext(f.ctx, http.MethodGet, config.Host+"/api/v1/services?limit=1",
				nil)
			if err != nil {
				return err
			}
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			flowUID, levelUID := response.Header.Get("X-Kubernetes-PF-FlowSchema-UID"), response.Header.Get("X-Kubernetes-PF-PriorityLevel-UID")
			if (flowUID == string(flow.UID)) != test.ours || (levelUID == string(level.UID)) != test.ours ||
				flowUID == "" {
				return fmt.Errorf("%s: flow %q, level %q", response.Status, flowUID, levelUID)
			}
			return nil
		})
	}

	// The real programs' own requests are counted by kube-apiserver.
	node := f.Node("a1")
	before := f.dispatched(name)
	f.Must(node.Wrapper.Restart(f.ctx))
	f.Eventually("the wrapper's lists and watches are dispatched there", func() error {
		if got := f.dispatched(name) - before; got < 6 { // three sources, each a list and a watch
			return fmt.Errorf("%d were", got)
		}
		return nil
	})
}

// dispatched is how many requests of a FlowSchema kube-apiserver has dispatched.
func (f *fixture) dispatched(flow string) int {
	f.Helper()
	metrics, err := f.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(f.ctx)
	f.Must(err)
	match := regexp.MustCompile(`(?m)^apiserver_flowcontrol_dispatched_requests_total\{flow_schema="` + flow +
		`".*\} (\S+)$`).FindSubmatch(metrics)
	if match == nil {
		return 0
	}
	var count float64
	if _, err := fmt.Sscan(string(match[1]), &count); err != nil {
		f.Fatal(err)
	}
	return int(count)
}
