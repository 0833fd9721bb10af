package check

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// aloneOld is the greatest age of a report of a node's lite-apiserver, which reports every 10 minutes.
const aloneOld = 30 * time.Minute

// checkAlone checks which nodes would start their pods without kube-apiserver. It ignores nodes without lite-apiserver.
func (r *Report) checkAlone(c *Cluster) {
	const check = "StartsAlone"
	with := 0
	for _, n := range c.nodes {
		if n.alone == nil {
			continue
		}
		with++
		said := c.Now.Sub(n.alone.LastHeartbeatTime.Time)
		r.first(check, n.name,
			row{n.ready && said > aloneOld, Warning, n.about(), fmt.Sprintf("its lite-apiserver has said nothing for "+
				"%s, so whether its pods would start without kube-apiserver is not known", said.Round(time.Minute)),
				"on the node: systemctl status lite-apiserver; if it was removed: kubectl edit node " + n.name +
					" --subresource=status, and remove the condition " + v1.NodeStartsAlone},
			row{n.alone.Status != corev1.ConditionTrue, Warning, n.about(), n.alone.Message,
				"on the node: lite-apiserver explain"})
	}
	r.well(check, with > 0, Object{Kind: kindNode}, "each of %s with lite-apiserver would start its pods without "+
		"kube-apiserver", enumerate.Count(with, "node"))
}
