// Package deadnodes polls this node's health service: another program on the node (SuperEdge's edge-health) that checks
// the neighbouring nodes, and notices a dead one while the cloud cannot be reached.
//
// A Poller asks the service at an interval which nodes are dead, and passes their names to its Nodes, which hide the
// endpoints on them. An answer counts only until the next poll has ended. If that fails, whatever the reason (the
// service is away, is slow, or answers nonsense), no node counts as dead any more. An endpoint that is wrongly shown
// costs retries; one that is wrongly hidden may cost the Service.
//
// Package storage/view decides what a dead node means for what is shown, and package upstream lists the addresses of
// nodes. Package proxy starts the Poller.
package deadnodes
