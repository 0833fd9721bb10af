package main

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// issuer is an API server that gives tokens, for this long at most.
type issuer struct {
	server
	most time.Duration
}

func (i issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		i.server.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/token") {
		http.NotFound(w, r)
		return
	}
	var request authenticationv1.TokenRequest
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, &request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	given := min(i.most, time.Duration(*request.Spec.ExpirationSeconds)*time.Second)
	request.TypeMeta = metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"}
	request.Status = authenticationv1.TokenRequestStatus{Token: "token of " + r.URL.Path,
		ExpirationTimestamp: metav1.NewTime(time.Now().Add(given))}
	answer(w, http.StatusCreated, &request)
}

// TestKubeconfig: what is printed is a kubeconfig with everything that a program on a node needs.
func TestKubeconfig(t *testing.T) {
	configMap := func(key, value string) *corev1.ConfigMap {
		return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
			Data: map[string]string{key: value}}
	}
	const system, edge = "/api/v1/namespaces/kube-system/", "/api/v1/namespaces/edge-system/"
	const tokenOf = "token of " + system + "serviceaccounts/"
	const info = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	kubeadm := map[string]any{info: configMap("kubeconfig", "{apiVersion: v1, kind: Config, clusters: "+
		"[{name: '', cluster: {server: 'https://10.0.0.1:6443'}}]}")}
	const year = 8760 * time.Hour
	for name, test := range map[string]struct {
		args          []string
		objects       map[string]any
		most          time.Duration
		server, token string
		code          int
		says          string
	}{
		"kubeadm": {args: []string{"application-grid-wrapper"}, objects: kubeadm, most: year,
			server: "https://10.0.0.1:6443", token: tokenOf + "application-grid-wrapper/token",
			says: "The token ends at "},
		"another distribution": {args: []string{"statefulset-grid-daemon"}, most: year,
			token: tokenOf + "statefulset-grid-daemon/token"},
		"an address and a namespace": {
			args:    []string{"application-grid-wrapper", "--address=https://127.0.0.1:6444", "-n", "edge-system"},
			objects: kubeadm, most: year, server: "https://127.0.0.1:6444",
			token: "token of " + edge + "serviceaccounts/application-grid-wrapper/token"},
		"a shorter token": {args: []string{"application-grid-wrapper"}, most: time.Hour,
			token: tokenOf + "application-grid-wrapper/token",
			says: "Warning: the API server gives tokens for less than --duration=8760h0m0s: this one is good for " +
				"1h0m0s"},
		"no program of a node": {args: []string{"kube-proxy"}, code: flags.ExitUsage,
			says: `"kube-proxy": must be application-grid-wrapper`},
		"too short": {args: []string{"application-grid-wrapper", "--duration=1m"}, code: flags.ExitUsage,
			says: "--duration must be 10m or longer"},
	} {
		t.Run(name, func(t *testing.T) {
			authority := configMap("ca.crt", "the authority")
			objects := map[string]any{
				system + "configmaps/kube-root-ca.crt": authority, edge + "configmaps/kube-root-ca.crt": authority,
			}
			maps.Copy(objects, test.objects)
			api := httptest.NewServer(issuer{server{objects: objects}, test.most})
			defer api.Close()
			t.Setenv("KUBECONFIG", writeKubeconfig(t, api.URL))
			got := callBare(t, append([]string{"kubeconfig"}, test.args...)...)
			if got.code != test.code || !strings.Contains(got.stderr, test.says) {
				t.Fatalf("exit code %d: %s", got.code, got.stderr)
			}
			if test.code != 0 {
				return
			}
			config, err := clientcmd.Load([]byte(got.stdout))
			if err != nil {
				t.Fatalf("%v:\n%s", err, got.stdout)
			}
			current := config.Contexts[config.CurrentContext]
			if current == nil {
				t.Fatalf("it has no context:\n%s", got.stdout)
			}
			cluster, user := config.Clusters[current.Cluster], config.AuthInfos[current.AuthInfo]
			if test.server == "" {
				test.server = api.URL
			}
			if cluster.Server != test.server || user.Token != test.token ||
				string(cluster.CertificateAuthorityData) != "the authority" {
				t.Errorf("it is\n%s", got.stdout)
			}
		})
	}
}
