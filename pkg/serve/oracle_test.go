package serve_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/serve"
)

var (
	oracleSeed   = flag.Uint64("oracle.seed", 0, "seed of the first run; 0 takes the clock")
	oracleRuns   = flag.Int("oracle.runs", 6, "runs, each with a fresh cluster, fresh clients and its own seed")
	oracleRounds = flag.Int("oracle.rounds", 40,
		"times per run that the cluster comes to rest and every client is compared")
	oracleEvents = flag.Int("oracle.events", 25, "upstream changes between two comparisons")
)

// TestClientsConvergeToTheView is the heart of the suite. A generator (oracle_generator_test.go) changes a model of the
// cluster at random, and delivers the changes to the facts in any order that an upstream may have. Clients
// (oracle_client_test.go) list, watch, disconnect, resume and lag, and check that every stream is consistent: revisions
// grow, nothing is added twice, nothing is modified or deleted that is not there. When the cluster is at rest, every
// client must hold what the model (oracle_model_test.go) says that the node may see. That holds also if steps panic.
func TestClientsConvergeToTheView(t *testing.T) {
	seed := *oracleSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i := range *oracleRuns {
		seed := seed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runOracle(t, seed)
		})
	}
}

func runOracle(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, seed))
	options := storagetest.Options{NodeName: viewer}
	short := r.IntN(2) == 0
	if short {
		// Watchers fall off a log this short all the time.
		options.LogEvents = 4 + r.IntN(40)
		options.LogBytes = 500 + r.IntN(20000)
	}
	// In every second run steps panic, half-way through.
	var panics, broken, armed bool
	brokenRounds := 0
	if panics = r.IntN(2) == 0; panics {
		options.Broken = func(error) { broken = true }
		options.Panics = func() bool { return armed && r.IntN(10) == 0 }
	}
	store := storagetest.New(options)
	served := filters.WithServedResources(
		&serve.Server{HistoryOf: serve.Only(store.History), BookmarkInterval: 20 * time.Millisecond}, viewer,
	)
	server := httptest.NewServer(served(http.NotFoundHandler()))
	defer server.Close()

	upstream := newGenerator(r, store)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var clients []*oracleClient
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 12 {
		c := newOracleClient(t, rand.New(rand.NewPCG(seed, uint64(i+1))), server.URL)
		c.everyEvent = !short
		clients = append(clients, c)
		wg.Go(func() { c.run(ctx) })
	}
	for round := range *oracleRounds {
		for range *oracleEvents {
			upstream.change()
			armed = panics
			for range r.IntN(4) {
				upstream.deliver()
			}
			armed = false
		}
		if broken {
			broken = false
			upstream.relist() // what the steps were to change may be missing
			brokenRounds++
		}
		upstream.rest()
		revision := store.History.Revision()
		for i, c := range clients {
			want := upstream.model.expected(c.resource, c.selector)
			if diff := c.waitFor(want, 20*time.Second); diff != "" {
				t.Errorf("round %d, revision %d: client %d (%s) differs from the view (-want +got):\n%s",
					round, revision, i, c, diff)
			}
		}
		if t.Failed() {
			return
		}
	}
	if panics && brokenRounds < *oracleRounds/4 {
		t.Errorf("steps panicked in %d of %d rounds only", brokenRounds, *oracleRounds)
	}
}
