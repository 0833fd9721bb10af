//go:build !race

package proxy

// verbosity is the highest that says more.
const verbosity = "10"
