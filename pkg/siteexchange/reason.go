package siteexchange

// The reasons for which something is ignored: the values of the metric's label.
const (
	// reasonStranger is a packet, a connection or a question from an address that no node of the site has.
	reasonStranger = "stranger"
	// reasonFlood is what exceeds the rate at which a node of the site may send.
	reasonFlood = "flood"
	// reasonKey is what none of the keys opens. The sender has another key, or belongs to another cluster.
	reasonKey = "key"
	// reasonNode is a word about a node that does not belong to the site, or an answer of another node than the asked.
	reasonNode = "node"
	// ReasonAddress is a word that a node has another address than it has in the cluster, or that a pod has an address
	// that none of that node's pods can have, or that is known to be another's.
	ReasonAddress = "address"
	// reasonReplay is a question or an answer that belongs to another connection.
	reasonReplay = "replay"
	// reasonOld is an answer that is older than one that came before.
	reasonOld = "old"
	// reasonFormat is what cannot be read: it is damaged, too large, or in a version that this program does not know.
	reasonFormat = "format"
)

// Reasons returns all reasons for which something is ignored.
func Reasons() []string {
	return []string{
		reasonStranger, reasonFlood, reasonKey, reasonNode, ReasonAddress, reasonReplay, reasonOld, reasonFormat,
	}
}
