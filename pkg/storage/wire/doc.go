// Package wire reads and edits Kubernetes objects in their protobuf form without decoding them.
//
// An EndpointSlice of 50 endpoints has 6 kB on the wire, and about 25 kB as Go values. A node that keeps the wire form
// keeps 100,000 endpoints in a few megabytes, prunes a slice in microseconds, and passes on fields that its own
// Kubernetes libraries do not know yet. The field numbers come from the generated.proto files of k8s.io/api and
// k8s.io/apimachinery, where they must never change.
//
// Input is not trusted: every function returns an error for bytes that are not the message it expects, and never
// panics. Results share memory with their input unless their comments say otherwise.
package wire
