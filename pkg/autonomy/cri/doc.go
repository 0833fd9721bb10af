// Package cri reads from the node's container runtime which pods it runs, over the Container Runtime Interface.
//
// A Client lists pod sandboxes and containers. A sandbox keeps its addresses as long as it exists, so these are asked
// for once. Everything is bounded: the size of a message, the number
// of pods, and (by the caller's context) the time. Nothing is written, and there is no connection between Close and the
// next question.
//
// The runtime's events (GetContainerEvents) are not used. containerd 1.x has one queue of events for all clients, so
// this one would take the kubelet's; CRI-O ends the stream at once unless enable_pod_events is set. The kubelet itself
// lists the same every second, from the runtime's memory.
//
// Where the kubelet itself says which pods are ready (PodsAPI), the Client follows that on one stream, and adds it to
// the runtime's answer (kubelet.go).
//
// Package livepods decides when to ask, and what the answers are used for.
package cri
