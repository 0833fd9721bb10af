// Package cri reads from the node's container runtime which pods it runs, over the Container Runtime Interface.
//
// A Client lists pod sandboxes and containers. A sandbox keeps its addresses as long as it exists, so a Client asks for
// these once. It limits the size of a message and the number of a pod's addresses; the caller's context limits the
// time. It changes nothing in the runtime, and holds no connection to it between two questions.
//
// The runtime's events (GetContainerEvents) are not used. containerd 1.x has one queue of events for all clients, so
// this one would take the kubelet's. CRI-O ends the stream at once unless enable_pod_events is set. The kubelet itself
// sends the same list requests every second, and the runtime answers them from memory.
//
// Where the kubelet itself reports which pods are ready (PodsAPI), the Client follows these reports on one stream, and
// adds them to the runtime's answer (kubelet.go).
//
// Package livepods decides when to ask, and uses the answers.
package cri
