//go:build race

package exchange

// The race detector makes handshakes ten times slower, so it sees shorter worlds. `make test-unit RACE=1` plays the
// whole ones without it.
func init() { *worldsWork /= 5 }
