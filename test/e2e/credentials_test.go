package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
)

// wrapperAccount is the wrapper's ServiceAccount, in kube-system.
const wrapperAccount = "application-grid-wrapper"

// revocableToken makes a token of the wrapper that ends with the Secret of that name.
func (f *fixture) revocableToken(name string) string {
	f.Helper()
	const namespace = "kube-system"
	core := f.client.CoreV1()
	_, err := core.ServiceAccounts(namespace).Create(f.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: wrapperAccount}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		f.Fatal(err)
	}
	secret, err := core.Secrets(namespace).Create(f.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	f.Must(err)
	f.Cleanup(func() { f.revoke(name) })
	request, err := core.ServiceAccounts(namespace).CreateToken(f.ctx, wrapperAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name,
				UID: secret.UID},
		}}, metav1.CreateOptions{})
	f.Must(err)
	return request.Status.Token
}

func (f *fixture) revoke(name string) {
	err := f.client.CoreV1().Secrets("kube-system").Delete(context.Background(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		f.Error(err)
	}
}

// TestInlineTokenIsReplaced: a token in a kubeconfig is replaced by another one, the old one revoked, and the wrapper
// goes on without a restart. When the new one ends, too, /readyz says so and names the file; a third one mends that.
func TestInlineTokenIsReplaced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	node := f.AddNode(cluster.NodeSpec{Name: "renewed", Labels: map[string]string{siteLabel: siteA}})
	service := f.daemonSet("echo", siteLabel)
	f.ExpectReach("before", service, reach{"renewed": "a1 a2 renewed"})
	pid := node.Wrapper.PID()
	lists := func() string {
		reply, err := node.Get(f.ctx, node.WrapperURL()+"/metrics")
		f.Must(err)
		var found []string
		for line := range strings.Lines(reply.Body) {
			if strings.HasPrefix(line, "application_grid_wrapper_upstream_lists_total") {
				found = append(found, strings.TrimSpace(line))
			}
		}
		return strings.Join(found, " ")
	}
	// The connections are cut, so that credentials are asked for again.
	reconnect := func() {
		f.Must(node.FreezeConnections(f.ctx))
		t.Cleanup(func() { _ = node.RestoreLink(context.Background()) })
	}

	began := lists()
	first := f.revocableToken("wrapper-first")
	f.Must(node.GiveWrapperToken(first))
	f.Eventually("a call in its own name succeeds with the token that is in its kubeconfig now", func() error {
		log, err := os.ReadFile(node.Wrapper.LogFile())
		f.Must(err)
		if !strings.Contains(string(log), "Using the changed kubeconfig") {
			return errors.New("the change was not noticed")
		}
		reply, err := node.Get(f.ctx, node.WrapperURL()+"/apis/networking.k8s.io/v1/servicecidrs")
		if err == nil && reply.Status != http.StatusOK {
			err = fmt.Errorf("status %d: %s", reply.Status, reply.Body)
		}
		return err
	})
	if now := lists(); now != began {
		t.Errorf("watches were lost: lists before %s, after %s", began, now)
	}

	second := f.revocableToken("wrapper-second")
	f.Must(node.GiveWrapperToken(second))
	f.revoke("wrapper-first")
	reconnect()
	f.setReady("echo", "a1", corev1.ConditionFalse)
	f.ExpectReach("followed with the second token", service, reach{"renewed": "a2 renewed"})
	f.Says(node, "/readyz", "services: ok", "endpointslices: ok")

	f.Must(node.RestoreLink(f.ctx))
	f.revoke("wrapper-second")
	reconnect()
	f.Answers(node, node.WrapperURL()+"/readyz", http.StatusServiceUnavailable,
		"[-] services: the upstream refuses the wrapper, renew the token in ", "wrapper-renewed.kubeconfig")
	reply, err := node.Get(f.ctx, node.WrapperURL()+"/metrics")
	f.Must(err)
	if !strings.Contains(reply.Body, `application_grid_wrapper_upstream_forbidden{source="services"} 1`) {
		t.Error("no metric tells of the refusal")
	}
	// What was known is served.
	if reply, err := node.Get(f.ctx, node.WrapperURL()+"/api/v1/services"); err != nil ||
		reply.Status != http.StatusOK {
		t.Errorf("Services: %+v, %v", reply, err)
	}

	f.Must(node.GiveWrapperToken(f.revocableToken("wrapper-third")))
	f.Says(node, "/readyz", "services: ok", "endpointslices: ok")
	if node.Wrapper.PID() != pid {
		t.Error("the wrapper was restarted")
	}
}
