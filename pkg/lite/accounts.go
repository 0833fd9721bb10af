package lite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/program/health"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
)

const (
	// accountScopes is how many scopes of one account are kept. flannel and CoreDNS have two to four.
	accountScopes = 64
	// accountBytes is about how many bytes of objects of one account are kept, and accountsBytes those of all accounts.
	// On the disk they take a few times as much (see program/store).
	accountBytes, accountsBytes = 16 << 20, 48 << 20
	// readLately is how long a scope that an account has read keeps its place.
	readLately = time.Minute
	// longestWatch is how long a watch lasts at most: kube-apiserver ends it (--min-request-timeout).
	longestWatch = time.Hour
	// scopeLength is how long the name of a scope of an account may be.
	scopeLength = 1024
)

// accountKinds are the kinds that accounts may read here, but that the kubelet does not ask for.
var accountKinds = []*kind{
	newKind[corev1.Namespace](corev1.SchemeGroupVersion, "namespaces"),
	newKind[corev1.Endpoints](corev1.SchemeGroupVersion, "endpoints"),
	newKind[discoveryv1.EndpointSlice](discoveryv1.SchemeGroupVersion, "endpointslices"),
	newKind[networkingv1.NetworkPolicy](networkingv1.SchemeGroupVersion, "networkpolicies"),
	newKind[networkingv1.Ingress](networkingv1.SchemeGroupVersion, "ingresses"),
	newKind[networkingv1.IngressClass](networkingv1.SchemeGroupVersion, "ingressclasses"),
	newKind[networkingv1.ServiceCIDR](networkingv1.SchemeGroupVersion, "servicecidrs"),
}

// allow makes the Store keep objects for ServiceAccounts. It is called before load.
//
// Each account has its own kinds, and so its own sets: no scope of one reader is found for another. Objects that an
// account may get, but not list, are of another kind than those that it lists. Secrets are left out: pods can get them
// from the kubelet, as volumes.
func (s *Store) allow(accounts []types.NamespacedName) {
	for _, account := range accounts {
		s.accounts[account.String()] = true
		for _, k := range slices.Concat(accountKinds, []*kind{nodes, pods, services, configMaps, csiDrivers}) {
			listed := *k
			listed.account = account.String()
			got := listed
			got.getOnly = true
			s.kinds[listed.key()], s.kinds[got.key()] = &listed, &got
		}
	}
}

// scopeOf returns the scope that an account reads with a request. ok is false if it is not kept.
func (s *Store) scopeOf(r *http.Request, account string) (in scope, ok bool) {
	info, query := serve.ParseRequest(r), r.URL.Query()
	if r.Method != http.MethodGet || info.Subresource != "" || query.Get("labelSelector") != "" ||
		(isWatch(r) && info.Name != "") {
		return scope{}, false
	}
	k := s.kindOf(info, kind{account: account, getOnly: info.Name != ""})
	selector, err := fields.ParseSelector(query.Get("fieldSelector"))
	if k == nil || err != nil || !isEquality(selector) {
		return scope{}, false
	}
	in = scope{k, info.Namespace, selector.String()}
	if info.Name != "" {
		in = objectScope(k, info.Namespace, info.Name)
	}
	return in, len(in.namespace)+len(in.fields) <= scopeLength
}

// isEquality reports whether a selector gives the value of each of its fields. Other selectors are not kept, because
// any number of different ones select everything.
func isEquality(selector fields.Selector) bool {
	return !slices.ContainsFunc(selector.Requirements(), func(r fields.Requirement) bool {
		return r.Operator == selection.NotEquals
	})
}

// noteScope records that an account reads a scope, until a time, and begins to keep the scope, unless the account reads
// too many.
func (s *Store) noteScope(in scope, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.sets[in] == nil {
		if now.Before(s.heavy[in].again) {
			return
		}
		read, account := 0, in.kind.account
		for other, set := range s.sets {
			if other.kind.account == account && now.Sub(set.read) < readLately {
				read++
			}
		}
		if read >= accountScopes {
			return
		}
		s.signalNeeds()
	}
	set := s.getOrAddSet(in)
	if until.After(set.read) {
		set.read = until
	}
}

// noteRead notes a caller's read once kube-apiserver has answered it with success, and so has authenticated the caller
// and authorised the request. So the token is not verified here. The noted scope is then read with this node's own
// token of the same account, so a mistake could not reveal more than that account may read.
func (s *Server) noteRead(asked *http.Request, answer *http.Response) {
	if answer.StatusCode < http.StatusMultipleChoices { // the token is valid
		quota.Prefer(asked.Context())
	}
	if len(s.store.accounts) == 0 || answer.StatusCode != http.StatusOK || asked.Method != http.MethodGet {
		return
	}
	parsed, said, err := parseToken(bearerOf(asked))
	if err != nil || !s.store.accounts[said.account()] {
		return
	}
	if len(s.store.signingKeys(parsed)) == 0 {
		s.store.mu.Lock()
		s.store.keysAt = time.Time{} // they are fetched again
		s.store.mu.Unlock()
	}
	if in, ok := s.store.scopeOf(asked, said.account()); ok {
		s.store.noteScope(in, readUntil(asked))
	}
}

// readUntil returns when a read that begins now ends.
func readUntil(r *http.Request) time.Time {
	if !isWatch(r) {
		return time.Now()
	}
	return time.Now().Add(timeoutOf(r, longestWatch))
}

func bearerOf(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme+" ", bearerPrefix) { // RFC 7235, 2.1
		return ""
	}
	return strings.TrimSpace(token)
}

func (r tokenRequest) account() string { return r.Namespace + "/" + r.ServiceAccount }

// accountTokens are the kept tokens of an account for kube-apiserver, "" for any account.
type accountTokens struct {
	store   *Store
	account string
}

// Token implements oauth2.TokenSource. It returns the newest one.
func (t accountTokens) Token() (*oauth2.Token, error) {
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	var newest token
	for request, kept := range t.store.tokens {
		if request.Audience == "" && (t.account == "" || t.account == request.account()) &&
			!kept.Issued.Before(newest.Issued) {
			newest = kept
		}
	}
	if newest.Token == "" {
		return nil, errors.New("the ServiceAccount has no token for a pod of this node")
	}
	return &oauth2.Token{AccessToken: newest.Token}, nil
}

// addAccounts adds the scopes that accounts read, of each the last ones, as long as the node has one of its pods, and
// kube-apiserver lets it read them.
func (f *follower) addAccounts(ctx context.Context, wanted needs, known map[scope]time.Time) {
	here, read := map[string]bool{}, []scope{}
	for id := range wanted {
		if request, ok := id.(tokenRequest); ok && request.Audience == "" {
			here[request.account()] = true
		}
	}
	for in := range known {
		account := in.kind.account
		if source := f.sources[in]; account != "" && source != nil && f.isRefused(source.State()) {
			klog.FromContext(ctx).Info("A ServiceAccount may no longer read what is kept for it, forgetting it",
				"serviceAccount", account, "resource", in.kind.Resource, "err", source.State().Err)
		} else if here[account] {
			read = append(read, in)
		}
	}
	slices.SortFunc(read, func(a, b scope) int { return known[b].Compare(known[a]) })
	var candidates []candidate
	count, left, leftOfAll := map[string]int{}, map[string]*int{}, new(accountsBytes)
	for _, in := range read {
		account := in.kind.account
		if count[account]++; count[account] == 1 {
			left[account] = new(accountBytes)
		}
		if count[account] <= accountScopes {
			candidates = append(candidates, candidate{needs{in: true}, in, []*int{left[account], leftOfAll}})
		}
	}
	f.store.selectWithinBudgets(wanted, candidates)
}

// reportAccounts adds the accounts to the report.
func (s *Server) reportAccounts(report *health.Report) {
	if len(s.store.accounts) == 0 {
		return
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if len(s.store.keys.Keys) == 0 {
		report.Note("the cluster's keys are not known yet, so no ServiceAccount is answered without kube-apiserver")
		return
	}
	kept, of := 0, map[string]int{}
	for in, set := range s.store.sets {
		if of[in.kind.account]++; in.kind.account != "" && set.version > 0 {
			kept++
		}
	}
	report.Note("%d lists and objects are kept for %d ServiceAccounts", kept, len(s.store.accounts))
	for account := range s.store.accounts {
		if of[account] >= accountScopes {
			report.Note("%s reads %d different lists and objects, and no more are kept of one", account, of[account])
		}
	}
	var large []string
	for id, heavy := range s.store.heavy {
		if in, ok := id.(scope); ok {
			large = append(large, fmt.Sprintf("%s of %s (%.1f MiB)", in.kind.Resource, in.kind.account,
				float64(heavy.size)/(1<<20)))
		}
	}
	if slices.Sort(large); len(large) > 0 {
		report.Note("%d are too large, and are not kept: %s", len(large),
			strings.Join(large[:min(len(large), 3)], ", "))
	}
}
