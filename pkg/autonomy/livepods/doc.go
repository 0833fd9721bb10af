// Package livepods decides whom to believe about a pod while the upstream cannot know better.
//
// The rule: the API's word on a pod stands until this node has itself seen that pod change. While the upstream is
// followed, a Keeper notes how the container runtime has the pods of this node that the API calls ready: the ids of
// their sandboxes and containers (rule.go). The notes are in the snapshot. While the upstream is away it asks the
// runtime every second, and what differs from the notes has changed. After a boot all ids are new. That a pod is down
// is believed at once. That it is up again is believed if the API called it ready before: at once if the Service has no
// other ready endpoint, and after 10 s otherwise. "Not ready", said of such a pod while it starts in a new sandbox,
// counts for nothing. Where the kubelet itself says which pods are ready, that counts.
//
// When the upstream is back, its word counts, with one exception. After an outage of 10 s or more what it says of the
// pods that it knew before may be that the node was not heard of. So each of them stays as it was until the upstream
// has said the same, and 30 s are over, or until the return grace is over. While the API calls this node not ready, its
// pods that run are still shown where a Service has no other ready endpoint.
//
// The neighbours conclude in the same way, and are believed about their own pods (neighbours.go), for the pods of
// Services with topologyKeys. They get this node's conclusions in return.
//
// Package cri asks the runtime, package exchange hears the neighbours, package storage/facts corrects the endpoints,
// and package proxy starts the Keeper.
package livepods
