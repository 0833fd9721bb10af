//go:build race

package proxy

// verbosity is below client-go's tracing of connections (V(9)), which reads what a connection's goroutine still writes.
const verbosity = "8"
