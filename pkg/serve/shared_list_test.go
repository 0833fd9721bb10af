package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/klauspost/compress/gzip"
	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/storage/storagetest"
)

// TestSharedListsEncodeOnce: who asks while a list is being sent is sent the same, and nothing stays.
func TestSharedListsEncodeOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lists sharedLists
		key := listKey{revision: "1"}
		encoded, released := 0, 0
		goOn := make(chan struct{})
		encode := func() (encodedList, func(), error) {
			encoded++
			<-goOn
			return encodedList{body: []byte("list")}, func() { released++ }, nil
		}
		gone, goAway := context.WithCancel(t.Context())
		dones := make(chan func(), 10)
		var asking sync.WaitGroup
		for range 10 {
			asking.Go(func() {
				list, done, err := lists.get(t.Context(), key, encode)
				if err != nil || string(list.body) != "list" {
					t.Errorf("got %q, %v", list.body, err)
				}
				dones <- done
			})
		}
		synctest.Wait()
		asking.Go(func() {
			if _, _, err := lists.get(gone, key, encode); !errors.Is(err, context.Canceled) {
				t.Errorf("who went gets %v", err)
			}
		})
		synctest.Wait()
		goAway()
		synctest.Wait()
		close(goOn)
		asking.Wait()
		if encoded != 1 {
			t.Errorf("it was encoded %d times", encoded)
		}
		for i := range 10 {
			if released != 0 {
				t.Errorf("its memory was given back after %d of 10", i)
			}
			(<-dones)()
		}
		if released != 1 || len(lists.lists) != 0 {
			t.Errorf("given back %d times, %d lists are kept", released, len(lists.lists))
		}
		_, done, err := lists.get(t.Context(), key, encode)
		if err != nil || encoded != 2 {
			t.Errorf("later it was encoded %d times, %v", encoded, err)
		}
		done()
	})
}

// TestARefusedListIsOneCallersOnly: who waited for a list that its first caller may not have tries it alone.
func TestARefusedListIsOneCallersOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var lists sharedLists
		key := listKey{revision: "1"}
		goOn := make(chan struct{})
		errRefused := errors.New("refused")
		var asking sync.WaitGroup
		asking.Go(func() {
			_, _, err := lists.get(t.Context(), key, func() (encodedList, func(), error) {
				<-goOn
				return encodedList{}, nil, errRefused
			})
			if !errors.Is(err, errRefused) {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		for range 3 {
			asking.Go(func() {
				list, done, err := lists.get(t.Context(), key, func() (encodedList, func(), error) {
					return encodedList{body: []byte("list")}, func() {}, nil
				})
				if err != nil || string(list.body) != "list" {
					t.Errorf("got %q, %v", list.body, err)
					return
				}
				done()
			})
		}
		synctest.Wait()
		close(goOn)
		asking.Wait()
		if len(lists.lists) != 0 {
			t.Errorf("%d lists are kept", len(lists.lists))
		}
	})
}

// TestRelayedLists are as others, compressed for a caller on this machine as well, and take memory once.
func TestRelayedLists(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	taken := 0
	c := newCluster(t, func(_ *storagetest.Options, s *Server) {
		s.Admit = func(_ *http.Request, bytes int) (func(), bool) {
			mu.Lock()
			defer mu.Unlock()
			taken += bytes
			return func() {
				mu.Lock()
				defer mu.Unlock()
				taken -= bytes
			}, true
		}
	})
	c.sync(many(1000)...)
	ask := func(query, accept string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, servicesPath+query, nil)
		r.RemoteAddr = "127.0.0.1:1"
		r.Header.Set("Accept", accept)
		r.Header.Set("Accept-Encoding", "gzip")
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		return w
	}
	for _, query := range []string{
		"", "?labelSelector=app%3Dservice-0001", "?limit=3", "?fieldSelector=metadata.name%3Dservice-0002",
	} {
		for _, accept := range []string{asProtobuf, asJSON, "application/yaml"} {
			c.server.Relayed = false
			alone := ask(query, accept)
			c.server.Relayed = true
			relayed := ask(query, accept)
			body := relayed.Body.Bytes()
			large := alone.Body.Len() >= relayedGzipThreshold
			if zipped := relayed.Header().Get("Content-Encoding") == "gzip"; zipped != large {
				t.Errorf("%s as %s: compressed is %t for %d bytes", query, accept, zipped, alone.Body.Len())
			} else if zipped {
				reader, err := gzip.NewReader(bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if body, err = io.ReadAll(reader); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(body, alone.Body.Bytes()) {
				t.Errorf("%s as %s: %d bytes are relayed, %d are served", query, accept, len(body), alone.Body.Len())
			}
		}
	}
	var before, after corev1.ServiceList
	for i, list := range []*corev1.ServiceList{&before, &after} {
		if err := json.Unmarshal(c.get(servicesPath, "Accept", asJSON).body, list); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			c.apply(service("another"))
		}
	}
	if len(after.Items) != len(before.Items)+1 {
		t.Errorf("%d Services after %d", len(after.Items), len(before.Items))
	}
	soon.Until(t, "the memory is given back", func() error { // after the client has the body
		mu.Lock()
		defer mu.Unlock()
		if taken != 0 {
			return fmt.Errorf("%d bytes are still taken", taken)
		}
		return nil
	})
}
