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
	f.must(err)
	f.Cleanup(func() { f.revoke(name) })
	request, err := core.ServiceAccounts(namespace).CreateToken(f.ctx, wrapperAccount,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name,
				UID: secret.UID},
		}}, metav1.CreateOptions{})
	f.must(err)
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
	f := newFixture(t)
	node, err := shared.AddNode(f.ctx, cluster.NodeSpec{Name: "renewed", Labels: map[string]string{unitLabel: unitA}})
	f.must(err)
	t.Cleanup(func() {
		if err := shared.RemoveNode(context.Background(), node.Spec.Name); err != nil {
			t.Errorf("removing the node: %v", err)
		}
	})
	service := f.daemonSet("echo", unitLabel)
	f.expectReach("before", service, reach{"renewed": "a1 a2 renewed"})
	pid := node.Wrapper.PID()
	readyz := func(status int, parts ...string) func() error {
		return func() error {
			reply, err := node.Get(f.ctx, node.WrapperURL()+"/readyz")
			if err != nil {
				return err
			}
			if reply.Status != status {
				return fmt.Errorf("/readyz: %d %s", reply.Status, reply.Body)
			}
			for _, part := range parts {
				if !strings.Contains(reply.Body, part) {
					return fmt.Errorf("/readyz lacks %q: %s", part, reply.Body)
				}
			}
			return nil
		}
	}
	lists := func() string {
		reply, err := node.Get(f.ctx, node.WrapperURL()+"/metrics")
		f.must(err)
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
		f.must(node.FreezeConnections(f.ctx))
		t.Cleanup(func() { _ = node.RestoreLink(context.Background()) })
	}

	began := lists()
	first := f.revocableToken("wrapper-first")
	f.must(node.GiveWrapperToken(first))
	f.eventually("a call in its own name succeeds with the token that is in its kubeconfig now", func() error {
		log, err := os.ReadFile(node.Wrapper.LogFile())
		f.must(err)
		if !strings.Contains(string(log), "The kubeconfig has changed") {
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
	f.must(node.GiveWrapperToken(second))
	f.revoke("wrapper-first")
	reconnect()
	f.setReady("echo", "a1", corev1.ConditionFalse)
	f.expectReach("followed with the second token", service, reach{"renewed": "a2 renewed"})
	f.eventually("it follows with the second token", readyz(http.StatusOK, "services: ok", "endpointslices: ok"))

	f.must(node.RestoreLink(f.ctx))
	f.revoke("wrapper-second")
	reconnect()
	f.eventually("the refusal is a reason", readyz(http.StatusServiceUnavailable,
		"[-] services: the upstream refuses the wrapper, renew the token in ", "wrapper-renewed.kubeconfig"))
	reply, err := node.Get(f.ctx, node.WrapperURL()+"/metrics")
	f.must(err)
	if !strings.Contains(reply.Body, `application_grid_wrapper_upstream_forbidden{source="services"} 1`) {
		t.Error("no metric tells of the refusal")
	}
	// What was known is served.
	if reply, err := node.Get(f.ctx, node.WrapperURL()+"/api/v1/services"); err != nil ||
		reply.Status != http.StatusOK {
		t.Errorf("Services: %+v, %v", reply, err)
	}

	f.must(node.GiveWrapperToken(f.revocableToken("wrapper-third")))
	took := f.eventually("a third token mends it", readyz(http.StatusOK, "services: ok", "endpointslices: ok"))
	t.Logf("ready %s after the third token was written", took)
	if node.Wrapper.PID() != pid {
		t.Error("the wrapper was restarted")
	}
}
