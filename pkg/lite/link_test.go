package lite

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestBadRequestsLeaveTheLink: what a stranger sends does not take kube-apiserver away from the kubelet.
func TestBadRequestsLeaveTheLink(t *testing.T) {
	t.Parallel()
	f := running(t)
	client := f.clientFor(f.kubelet())
	for _, request := range []string{
		"PUT / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 1000\r\n\r\nten bytes.",
	} {
		for range 10 {
			connection, err := (&tls.Dialer{Config: &tls.Config{
				MinVersion: tls.VersionTLS12, InsecureSkipVerify: true,
			}}).DialContext(t.Context(), "tcp", f.config.Address)
			f.must(err)
			_, err = fmt.Fprint(connection, request)
			f.must(err)
			f.must(connection.(*tls.Conn).CloseWrite())
			_, _ = bufio.NewReader(connection).ReadString('\n') // an answer, or the end
			_ = connection.Close()
			if f.server.link.Away() != nil {
				t.Fatalf("kube-apiserver is taken for away after %q", request)
			}
		}
	}
	_, err := client.CoreV1().Nodes().Patch(t.Context(), "node0", types.MergePatchType, []byte("{}"),
		metav1.PatchOptions{})
	f.must(err)
}
