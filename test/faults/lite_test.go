package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// healthService is where a node's program listens that knows which neighbours are dead.
const healthService = "127.0.0.1:51005"

// behindLite is the node of a fault behind a lite-apiserver. Its wrapper lists the addresses of nodes beside what it
// follows, as the autonomy option lets it do.
func behindLite() cluster.NodeSpec {
	return cluster.NodeSpec{Interposed: true, Lite: true, WrapperArgs: []string{
		"--service-autonomy-enhancement=enabled=true,interval=1,address=http://" + healthService + "/localinfo",
	}}
}

// cloudAway is a lite-apiserver that has lost its API server, and has a habit.
func cloudAway(name string, habits cluster.LiteHabits, during func(*site)) fault {
	return fault{
		name: "lite-apiserver, cloud away: " + name, lasts: forms(10*time.Second, 40*time.Second), bound: deadline,
		isolates: true,
		node:     behindLite(), during: during,
		inflict: func(s *site) {
			// The wrapper takes an answer for the API server's, and no cache's, once a watch has been open for a
			// second. Without that contact it says that what it serves is of unknown age.
			s.wait(3 * time.Second)
			s.node.Interposer.Behave(s.node.Lite.Offline(habits))
		},
		relieve: func(s *site) { s.node.Interposer.Behave(s.node.Lite.Online()) },
		after:   (*site).expectFollowing,
	}
}

// source is a metric of one of the wrapper's sources.
func (s *site) source(name, source string) float64 {
	s.Helper()
	value, _ := s.metric(fmt.Sprintf("application_grid_wrapper_upstream_%s{source=%q}", name, source))
	return value
}

// expectFromCache waits until the wrapper says that its upstream answers from a cache, and checks that this counts as
// no contact.
func (s *site) expectFromCache() {
	s.Helper()
	took := s.Eventually("it says that it is answered from a cache", func() error {
		reply, err := s.get("/readyz")
		if err != nil {
			return err
		}
		for _, source := range []string{"nodes", "services", "endpointslices"} {
			if !strings.Contains(reply.Body, "[+] "+source+": served from the cache, ") ||
				s.source("from_cache", source) != 1 || s.source("up", source) != 0 {
				return fmt.Errorf("status %d: %s", reply.Status, reply.Body)
			}
		}
		if reply.Status != http.StatusOK {
			return fmt.Errorf("status %d: %s", reply.Status, reply.Body)
		}
		return nil
	})
	s.Logf("said after %s", took)
	const look = 5 * time.Second
	before := s.source("last_contact_seconds", "services")
	s.wait(look)
	if after := s.source("last_contact_seconds", "services"); after < before+look.Seconds()-0.5 {
		s.Errorf("the cache's answers count as contact: %.1f s ago, and %s later %.1f s ago", before, look, after)
	}
}

// expectFollowing waits until nothing comes from a cache, and checks that no list took the place of another one in it.
func (s *site) expectFollowing() {
	s.Helper()
	s.Eventually("all sources follow", func() error {
		for _, source := range []string{"nodes", "node", "services", "endpointslices"} {
			if s.source("from_cache", source) != 0 || s.source("up", source) != 1 {
				return fmt.Errorf("%s do not", source)
			}
		}
		return nil
	})
	// What is passed on is asked by kube-proxy in its own name, and in a way of its own: a stream first, then a list.
	keys := slices.DeleteFunc(s.node.Lite.Overwritten(),
		func(key string) bool { return strings.HasPrefix(key, "kube-proxy/") })
	if len(keys) > 0 {
		s.Errorf("answers to different questions have one key in the cache: %v", keys)
	}
}

// nameAddresses lets the health service of the node name an address, so that the wrapper lists those of all nodes.
func (s *site) nameAddresses() {
	s.Helper()
	listener, err := s.node.Listen(s.ctx, healthService)
	s.Must(err)
	server := &http.Server{ReadHeaderTimeout: deadline,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"192.0.2.1":{"normal":true}}`)
		})}
	go server.Serve(listener)
	s.Cleanup(func() { server.Close() })
	s.Eventually("the nodes' addresses are listed", func() error {
		if !s.node.Lite.Kept("+node-addresses_nodes_") {
			return errors.New("the cache has none")
		}
		return nil
	})
}

// expectCompressedWatch checks that a client that takes compressed streams gets a watch that is passed on.
func (s *site) expectCompressedWatch() {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, deadline)
	defer cancel()
	config := s.node.WrapperConfig(cluster.RoleKubeProxy)
	client := &http.Client{Transport: &http.Transport{DialContext: config.Dial, DisableKeepAlives: true,
		DisableCompression: true}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet,
		config.Host+"/apis/networking.k8s.io/v1/servicecidrs?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan", nil)
	s.Must(err)
	r.Header.Set("Accept-Encoding", "gzip")
	response, err := client.Do(r)
	s.Must(err)
	defer response.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(response.Body, first); err != nil || response.StatusCode != http.StatusOK {
		s.Errorf("a watch of ServiceCIDRs, status %d: %v", response.StatusCode, err)
	}
}

// TestLiteAPIServer is a site behind SuperEdge's lite-apiserver, habit by habit.
func TestLiteAPIServer(t *testing.T) {
	silently := cloudAway("packets dropped, nothing noticed", cluster.LiteHabits{Hangs: true}, func(s *site) {
		s.expectRefusal()
	})
	silently.inflict = func(s *site) {
		behaviour := s.node.Lite.Offline(cluster.LiteHabits{Hangs: true})
		behaviour.Freezes = true
		s.node.Interposer.Behave(behaviour)
	}
	runAll(t, []fault{
		{
			name: "lite-apiserver: one key per User-Agent, compressed streams", lasts: 5 * time.Second, bound: deadline,
			node: behindLite(),
			inflict: func(s *site) {
				s.nameAddresses()
				s.expectCompressedWatch()
			},
			after: (*site).expectFollowing,
		},
		cloudAway("lists from the cache, empty watches", cluster.LiteHabits{}, (*site).expectFromCache),
		func() fault {
			f := cloudAway("nothing cached", cluster.LiteHabits{},
				func(s *site) { s.Says(s.node, "/readyz", "could not find the requested resource") })
			inflict := f.inflict
			f.inflict = func(s *site) {
				s.node.Lite.Forget()
				inflict(s)
			}
			return f
		}(),
		cloudAway("empty lists without resourceVersion", cluster.LiteHabits{EmptyLists: true},
			func(s *site) { s.Says(s.node, "/readyz", "not using it") }),
		cloudAway("its writer hangs", cluster.LiteHabits{Stuck: true}, nil),
		silently,
	})
}
