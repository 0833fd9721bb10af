// Package livepods decides how the pods of this node are shown while the API server's status of them may be out of
// date.
//
// An endpoint is clean, suspected, silent or down. Suspected and silent endpoints are used only where the Service has
// nothing better, and endpoints that are down are never used. A pod's state follows from its note and from what the
// container runtime reports now (rule.go).
//
// A note has the ids of the containers to which the API server's last status applies, and the names of the containers
// that may be needed. New ids are noted only when the API server has confirmed that status a minute after the pod
// changed, because a link may be dead before anything notices. If the status is "ready", the kubelet must have reported
// so late as well, because a container may die together with its kubelet; a report that was made before an outage does
// not count. No timestamp of a node is used, and a needed container stays needed however much time passes.
//
//   - A pod whose ids are the noted ones has the status that the API server last gave it. Each of its endpoints keeps
//     its own conditions and address. An endpoint of a second network keeps its address even when the pod has changed.
//   - A pod with other ids is suspected until all of its containers have run for 10 s. After that it is clean if the
//     API server last called it ready.
//   - A pod is down while a container that is certainly needed does not run. A container is certainly needed if the
//     kubelet lists it as such (PodsAPI), or if it has been restarted: a container of kubectl debug never is, and
//     nothing else in the Container Runtime Interface distinguishes the two. If any other container that ran when the
//     pod was ready stops, the pod is suspected. A container that was first seen when the pod was ready already is
//     ignored.
//   - After a reboot a pod is down until the runtime lists it. Otherwise a pod that the runtime does not list is down
//     only if the notes were taken from the same runtime.
//   - When the runtime has not answered for 30 s, the pods of its last answer are suspected.
//
// Where the kubelet itself reports which pods are ready, its report decides. While the API server calls the node not
// ready, it also calls the node's pods not ready. Those that run are then shown as suspected.
//
// When the upstream is back, its status applies again, with one exception. After an outage of 10 s or more it may call
// the pods that it knew before not ready, only because the kubelet could not report. So each of these pods keeps its
// state until the upstream agrees and 30 s have passed, or until the return grace has expired.
//
// Each neighbour judges its own pods in the same way. This node accepts these judgements (neighbours.go) for the pods
// of Services with topologyKeys, and sends its own in return.
//
// Package cri asks the runtime, package exchange talks to the neighbours, package storage/facts corrects the endpoints,
// and package proxy starts the Keeper.
package livepods
