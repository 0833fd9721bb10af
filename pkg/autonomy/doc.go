// Package autonomy follows this node's health service: a program beside the wrapper that watches its neighbours
// (SuperEdge's edge-health) and knows of a dead one while the cloud, which is away, does not.
//
// A Poller asks it at an interval which nodes are dead, and tells the Store, which hides the endpoints on them.
// An answer counts for no longer than it takes to ask again: whatever goes wrong with the service (it is away,
// slow, answers nonsense) leaves no node dead, at once. A neighbour that is wrongly shown costs retries; one
// that is wrongly hidden costs the Service.
//
// It owns the question and the reading of the answer. What dead means for a view is package storage's, what
// may be asked of the upstream about addresses is package upstream's. Package proxy starts it.
package autonomy
