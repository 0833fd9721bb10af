package e2e

import (
	"fmt"
	"os/exec"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// TestServingCertificateOfTheCluster: a wrapper that serves TLS without files requests a certificate, which
// kube-controller-manager signs once the request is approved, and the CA that every pod has verifies it.
func TestServingCertificateOfTheCluster(t *testing.T) {
	f := newFixture(t)
	node := f.Node("a1")
	for _, args := range [][]string{
		{"clusterrole", "certificates", "--verb=create,get", "--resource=certificatesigningrequests.certificates.k8s.io"},
		{"clusterrolebinding", "certificates", "--clusterrole=certificates", "--user=" + string(cluster.RoleWrapper)},
	} {
		_, err := suite.Output(f.Kubectl(f.ctx, append([]string{"create"}, args...)...))
		f.Must(err)
	}

	const address = "127.0.0.1:21106" // no port that a client is given
	cmd := exec.Command(suite.Binary(t, "application-grid-wrapper"), append(node.Wrapper.Args(), "--bind-address="+address, "--insecure=false",
		"--cert-dir="+t.TempDir(), "--state-dir=")...)
	f.Must(node.Start(cmd))
	t.Cleanup(func() {
		// If it fails it has ended.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	requests := f.client.CertificatesV1().CertificateSigningRequests()
	f.Eventually("a request is there", func() error {
		found, err := requests.List(f.ctx, metav1.ListOptions{})
		if err != nil || len(found.Items) != 1 {
			return fmt.Errorf("%d requests: %w", len(found.Items), err)
		}
		request := &found.Items[0]
		request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
		})
		_, err = requests.UpdateApproval(f.ctx, request.Name, request, metav1.UpdateOptions{})
		return err
	})
	config := rest.CopyConfig(shared.RESTConfig())
	config.Host, config.Dial = "https://"+address, node.WrapperConfig(cluster.RoleNobody).Dial
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
	f.Eventually("the cluster's CA verifies the wrapper", func() error {
		_, err := client.CoreV1().Services("").List(f.ctx, metav1.ListOptions{})
		return err
	})
}
