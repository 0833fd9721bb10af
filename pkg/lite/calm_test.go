package lite

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

const (
	calmPods = 50
	// bookmarks is how often kube-apiserver says the version of what a watch follows.
	bookmarks = time.Minute
	// calmBytes is how much an hour may write in which nothing changes, calmCommits how many times: each writes blocks.
	calmBytes, calmCommits = 1 << 18, 8
)

// TestCalmHour plays an hour in which nothing changes: bookmarks come, and tokens are renewed.
func TestCalmHour(t *testing.T) {
	dir := inMemory(t)
	synctest.Test(t, func(t *testing.T) {
		s := &Server{store: newStore("node0")}
		kept, _, problems := store.Open(store.Options{Dir: dir, Lasting: isLasting, State: s.store.wholeState,
			HourlyBytes: hourlyBytes})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		s.disk = kept
		scopes, tokens := calmNode(s.store)
		s.commit(klog.Background(), hourlyBytes)
		before, commits := s.bytesWritten(), 0
		t.Logf("with %d pods the first commit has %d kB", calmPods, before/1000)
		for second := range 3600 {
			time.Sleep(commitInterval)
			for i, in := range scopes {
				if (second+i)%int(bookmarks/time.Second) == 0 {
					sink{s.store, in}.ChangeAt(strconv.Itoa(100+second), nil)
				}
			}
			for _, request := range tokens {
				if kept, _ := s.store.token(request); time.Since(kept.Issued) > kept.Expiration.Sub(kept.Issued)/2 {
					s.store.putToken(request, calmToken())
				}
			}
			last := s.bytesWritten()
			if s.commit(klog.Background(), hourlyBytes); s.bytesWritten() > last {
				commits++
			}
		}
		written := s.bytesWritten() - before
		t.Logf("in an hour: %d commits, %d kB", commits, written/1000)
		if written > calmBytes || commits > calmCommits {
			t.Errorf("%d bytes were written, %d times", written, commits)
		}
		if err := kept.Close(); err != nil {
			t.Error(err)
		}
	})
}

// calmNode fills a store: pods with a Secret, a ConfigMap and a token each, and what every node has.
func calmNode(store *Store) (scopes []scope, tokens []tokenRequest) {
	put := func(in scope, objects ...*wire.Object) {
		sink{store, in}.ChangeAt("100", func() { sink{store, in}.Replace(objects) })
		scopes = append(scopes, in)
	}
	var all []*wire.Object
	for i := range calmPods {
		meta := metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("pod-%d", i), ResourceVersion: "50",
			UID: types.UID(fmt.Sprintf("6f2f2a1e-0000-4000-8000-%012d", i))}
		all = append(all, wiretest.Object(&corev1.Pod{ObjectMeta: meta,
			Spec: corev1.PodSpec{Hostname: strings.Repeat("x", 3000)}})) // as long as most are
		put(objectScope(secrets, "shop", meta.Name), wiretest.Object(&corev1.Secret{ObjectMeta: meta}))
		put(objectScope(configMaps, "shop", meta.Name), wiretest.Object(&corev1.ConfigMap{ObjectMeta: meta}))
		request := tokenRequest{"shop", "default", meta.Name, meta.UID, "", 3607}
		store.putToken(request, calmToken())
		tokens = append(tokens, request)
	}
	for _, in := range nodeScopes("node0") {
		if in == podScope("node0") {
			put(in, all...)
		} else {
			put(in)
		}
	}
	return scopes, tokens
}

// calmToken is as long as kube-apiserver's.
func calmToken() token {
	return token{Token: strings.Repeat("t", 1100), Issued: time.Now(), Expiration: time.Now().Add(3607 * time.Second)}
}
