package lite

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"testing"
	"time"

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
			if f.server.link.AwayUntil() != nil {
				t.Fatalf("kube-apiserver is taken for away after %q", request)
			}
		}
	}
	_, err := client.CoreV1().Nodes().Patch(t.Context(), "node0", types.MergePatchType, []byte("{}"),
		metav1.PatchOptions{})
	f.must(err)
}

// TestSlowLink: where each answer of kube-apiserver takes 3 s, a kubelet, which waits for 10 s, gets its writes
// through.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.cloud.late.Store(int64(3 * time.Second))
	f.start()
	there := func() error {
		if f.server.link.AwayUntil() != nil || !f.server.store.isCurrent(podScope("node0")) {
			return errors.New("it is not")
		}
		return nil
	}
	patience.Until(t, "kube-apiserver is there", there)
	client := f.clientFor(f.kubelet())
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := client.CoreV1().Nodes().Patch(ctx, "node0", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		cancel()
		if err != nil || there() != nil {
			t.Errorf("kube-apiserver is there: %v, and a write gets %v", there() == nil, err)
		}
	}
}
