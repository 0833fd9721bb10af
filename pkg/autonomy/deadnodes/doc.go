// Package deadnodes polls this node's health service: another program on the node (SuperEdge's edge-health) that checks
// the neighbouring nodes, and notices a dead one while the cloud cannot be reached.
//
// A Poller asks the service at an interval which nodes are dead, and passes their names to its Nodes, which hide the
// endpoints on them. An answer is valid until the next poll has ended. If that poll fails for any reason (the service
// is away, is slow, or sends an invalid answer), no node counts as dead. An endpoint that is wrongly shown costs
// retries; one that is wrongly hidden may make the Service unavailable.
//
// Package storage/view decides how the endpoints of a dead node are shown, and package upstream lists the addresses of
// nodes. Package proxy starts the Poller.
package deadnodes
