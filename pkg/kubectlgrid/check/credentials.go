package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// soon is how long before its end a certificate or token causes a warning. kubeadm renews certificates only in
// upgrades.
const soon = 30 * 24 * time.Hour

// credential is a certificate or a token that ends.
type credential struct {
	what string
	ends time.Time
}

// credentialsIn finds certificates and tokens in a text: PEM, a JSON Web Token, or a kubeconfig with such in it.
func credentialsIn(text string) []credential {
	found := certificatesIn([]byte(text))
	if ends, ok := tokenEnd(strings.TrimSpace(text)); ok {
		found = append(found, credential{"token", ends})
	}
	var config clientcmdapi.Config
	if !strings.Contains(text, "clusters:") && !strings.Contains(text, `"clusters"`) ||
		yaml.Unmarshal([]byte(text), &config) != nil {
		return found
	}
	for _, cluster := range config.Clusters {
		found = append(found, certificatesIn(cluster.Cluster.CertificateAuthorityData)...)
	}
	for _, user := range config.AuthInfos {
		found = append(found, certificatesIn(user.AuthInfo.ClientCertificateData)...)
		if ends, ok := tokenEnd(user.AuthInfo.Token); ok {
			found = append(found, credential{fmt.Sprintf("token of user %q", user.Name), ends})
		}
	}
	return found
}

func certificatesIn(data []byte) []credential {
	certificates, _ := cert.ParseCertsPEM(data) // without any there is nothing that ends
	found := make([]credential, 0, len(certificates))
	for _, certificate := range certificates {
		found = append(found, credential{fmt.Sprintf("certificate %q", certificate.Subject), certificate.NotAfter})
	}
	return found
}

// algorithms are those of tokens of kube-apiserver, and of common providers of OpenID Connect.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512,
	jose.PS256, jose.PS384, jose.PS512, jose.EdDSA}

// tokenEnd returns the claim exp of a JSON Web Token, without verifying it.
func tokenEnd(token string) (time.Time, bool) {
	parsed, err := jwt.ParseSigned(token, algorithms)
	var claims jwt.Claims
	if err != nil || parsed.UnsafeClaimsWithoutVerification(&claims) != nil || claims.Expiry == nil {
		return time.Time{}, false
	}
	return claims.Expiry.Time(), true
}

// checkCredentials looks for certificates and tokens that have ended or end soon.
func (r *Report) checkCredentials(c *Cluster) {
	const check = "Credentials"
	seen := 0
	look := func(about Object, key string, found credential, action string) {
		seen++
		left, day := found.ends.Sub(c.Now), found.ends.UTC().Format(time.DateOnly)
		what := found.what
		if key != "" {
			what += " in key " + key
		}
		r.first(check, "",
			row{left <= 0, Failure, about, fmt.Sprintf("the %s ended on %s", what, day), action},
			row{left < soon, Warning, about, fmt.Sprintf("the %s ends on %s, in %s", what, day, days(left)), action})
	}
	if !c.Server.CertificateEnd.IsZero() {
		look(Object{Kind: "API server"}, "", credential{"serving certificate", c.Server.CertificateEnd},
			"renew it; with kubeadm: kubeadm certs renew all, and restart the control plane's pods")
	}
	abouts := slices.SortedFunc(maps.Keys(c.carries), func(a, b Object) int {
		return strings.Compare(a.String(), b.String())
	})
	for _, about := range abouts {
		doc := c.documents[about]
		if doc == nil || doc.err != nil {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(doc.data)) {
			for _, found := range credentialsIn(doc.data[key]) {
				look(about, key, found,
					"renew it there; the wrapper reads it again without a restart, kube-proxy does not "+
						"(docs/systemd.md, Renew the token, says how a token is made)")
			}
		}
	}
	for _, n := range c.nodes {
		r.all(check, n.name, row{n.edge == v1.EdgeNodeSystemd || n.edge == v1.EdgeNodeStatic, Unknown, n.about(),
			"the wrapper's credentials are files on the node, which the API server does not show",
			"alert on application_grid_wrapper_upstream_forbidden; docs/systemd.md, Renew the token"})
	}
	r.well(check, seen > 0, Object{Kind: "API server"}, "the %d certificates and tokens that can be seen last for %s "+
		"at least; those of ServiceAccounts in pods renew themselves", seen, days(soon))
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return enumerate.Count(int(d.Hours()), "hour")
	}
	return enumerate.Count(int(d.Hours()/24), "day")
}
