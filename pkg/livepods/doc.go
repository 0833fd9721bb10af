// Package livepods keeps the endpoints of this node's own pods true while the upstream cannot: after a power cut that
// takes the link too, every pod has a new address, and the endpoints that are known are those of pods that are gone.
//
// While the upstream is away, a Keeper asks the node's container runtime every second which pods it runs, and passes
// them to the facts, which correct the endpoints on this node. When the upstream is back, its state counts for
// everything but the pods that it knew before: what it says of those was true before the outage, or says that the node
// could not be reached. Each of them stays as the runtime has it until the upstream says the same, or until the return
// grace is over. For pods that the upstream calls terminating, that holds for their addresses only.
//
// The neighbours' pods are kept true in the same way, as far as these nodes say themselves which pods they run, for the
// pods of Services with topologyKeys. The neighbours get this node's pods in return: while its upstream is away, and
// while the upstream of any of them is.
//
// While the upstream is followed, the runtime is asked every 5 minutes, so that /readyz says in time if it could not be
// asked. There is no connection to it in between.
//
// Package cri asks the runtime, package siteexchange hears the neighbours, package storage/facts corrects the
// endpoints, and package proxy starts the Keeper.
package livepods
