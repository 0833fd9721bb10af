// Package wire reads and edits Kubernetes objects in their protobuf form without decoding them.
//
// An EndpointSlice of 50 endpoints is 6 kB on the wire and some 25 kB of Go values; a node that keeps the
// wire form keeps a fleet of 100,000 endpoints in a few megabytes, prunes a slice in microseconds, and
// hands on fields that its own Kubernetes libraries do not know yet. The field numbers come from the
// generated.proto files of k8s.io/api and k8s.io/apimachinery, where they may never change.
//
// Input is untrusted: every function returns an error for bytes that are not the message it expects, and
// never panics. Results share memory with their input unless said otherwise.
package wire
