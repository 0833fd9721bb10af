// Package livepods decides how the pods of this node are shown while what the API server says of them may be old.
//
// An endpoint is clean, suspected, silent or down. Suspected and silent ones are used only where the Service has
// nothing better, down ones never. What a pod is follows from its note, and from how the container runtime has it now
// (rule.go).
//
// A note has the ids of the pod's sandbox and containers of which the API server's last state is, and the containers
// that may be needed. Ids move on only when that state has stood for a minute of contact with the API server, and
// "ready" only when the kubelet has reported since as well: a link may be dead before anything notices, and a container
// may die together with its kubelet. No clock of a node is read, and no time makes a container unneeded.
//
//   - A pod whose ids are the noted ones is as the API server said. Each of its endpoints keeps its own conditions and
//     address, and one of a second network keeps that even when the pod has changed.
//   - A pod with other ids is suspected for 10 s after all of its containers run, and then clean if the API server last
//     called it ready.
//   - A needed container that does not run means down. It is certain that a container is needed if the kubelet says so
//     (its PodsAPI), or if it was started again: one of kubectl debug never is, and nothing else in the Container
//     Runtime Interface tells them apart. Another container that ran when the pod was ready makes it a suspect when it
//     stops; one that was first seen when the pod was ready counts for nothing.
//   - After another boot a pod is down until it is seen. Otherwise one that the runtime does not list is down only if
//     this is the runtime of the note.
//   - A runtime that does not answer for 30 s makes what it said last suspected.
//
// Where the kubelet itself says which pods are ready, that counts. While the API server calls the node not ready, its
// "not ready" for the node's pods does not count: those that run stand in, as suspects.
//
// When the upstream is back, its word counts, with one exception. After an outage of 10 s or more what it says of the
// pods that it knew before may be that the node was not heard of. So each of them stays as it was until the upstream
// has said the same, and 30 s are over, or until the return grace is over.
//
// The neighbours conclude in the same way, and are believed about their own pods (neighbours.go), for the pods of
// Services with topologyKeys. They get this node's conclusions in return.
//
// Package cri asks the runtime, package exchange hears the neighbours, package storage/facts corrects the endpoints,
// and package proxy starts the Keeper.
package livepods
