package check

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/cert"

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

// A kubeconfig has PEM in base64, whose first bytes are "-----BEGIN", and JSON Web Tokens, whose first ones are `{"`.
var (
	encodedPEM = regexp.MustCompile(`LS0tLS1CRUdJT[A-Za-z0-9+/]+=*`)
	tokens     = regexp.MustCompile(`eyJ[\w-]+\.([\w-]+)\.[\w-]+`)
)

// credentialsIn finds certificates and tokens in a text: PEM, a token, or a kubeconfig with such in it. It verifies
// none.
func credentialsIn(text string) []credential {
	var found []credential
	for _, encoded := range encodedPEM.FindAllString(text, -1) {
		decoded, _ := base64.StdEncoding.DecodeString(encoded) // without base64 there is no PEM
		text += "\n" + string(decoded)
	}
	certificates, _ := cert.ParseCertsPEM([]byte(text)) // without any there is nothing that ends
	for _, certificate := range certificates {
		found = append(found, credential{fmt.Sprintf("certificate %q", certificate.Subject), certificate.NotAfter})
	}
	for _, token := range tokens.FindAllStringSubmatch(text, -1) {
		var claims struct {
			Expiry int64 `json:"exp"`
		}
		payload, err := base64.RawURLEncoding.DecodeString(token[1])
		if err == nil && json.Unmarshal(payload, &claims) == nil && claims.Expiry != 0 {
			found = append(found, credential{"token", time.Unix(claims.Expiry, 0)})
		}
	}
	return found
}

// checkCredentials looks for certificates and tokens that have ended or end soon: that of the API server, and those in
// the ConfigMaps and Secrets of the programs' pods.
func (r *Report) checkCredentials(ctx context.Context, c *Cluster) {
	const check = "Credentials"
	api, seen := Object{Kind: "API server"}, 0
	look := func(about Object, what string, ends time.Time, action string) {
		seen++
		left, day := ends.Sub(c.Now), ends.UTC().Format(time.DateOnly)
		r.first(check, "",
			row{left <= 0, Failure, about, fmt.Sprintf("the %s ended on %s", what, day), action},
			row{left < soon, Warning, about, fmt.Sprintf("the %s ends on %s, in %s", what, day,
				duration.HumanDuration(left)), action})
	}
	if ends := c.Server.CertificateEnd; !ends.IsZero() {
		look(api, "serving certificate", ends,
			"renew it; with kubeadm: kubeadm certs renew all, and restart the control plane's pods")
	}
	c.carries[named(kindConfigMap, system, "kube-root-ca.crt")] = true
	for _, about := range slices.SortedFunc(maps.Keys(c.carries), func(a, b Object) int {
		return strings.Compare(a.String(), b.String())
	}) {
		doc := c.document(ctx, about, "when the credentials in it end is not known")
		for _, key := range slices.Sorted(maps.Keys(doc.data)) {
			for _, found := range credentialsIn(doc.data[key]) {
				look(about, found.what+" in key "+key, found.ends, "renew it there; the wrapper reads it again, and "+
					"kube-proxy does after a restart (docs/systemd.md, Renew the token, says how a token is made)")
			}
		}
	}
	for _, n := range c.nodes {
		r.all(check, n.Name, row{n.edge == v1.EdgeNodeSystemd || n.edge == v1.EdgeNodeStatic, Unknown, n.Object,
			"the wrapper's credentials are files on the node, which the API server does not show",
			"alert on application_grid_wrapper_upstream_forbidden; docs/systemd.md, Renew the token"})
	}
	r.well(check, seen > 0, api, "the %d certificates and tokens that can be seen last for %s at least; those of "+
		"ServiceAccounts in pods renew themselves", seen, duration.HumanDuration(soon))
}
