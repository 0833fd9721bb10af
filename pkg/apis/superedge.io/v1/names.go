package v1

import corev1 "k8s.io/api/core/v1"

const (
	// AnnotationTopologyKeys is an annotation of Services: a JSON array of node label keys. It governs which endpoints
	// of the Service a node may see, as package topology describes. Without it, or with an empty array, the Service is
	// not governed.
	AnnotationTopologyKeys = "topologyKeys"

	// AnnotationLocalEndpoint is an annotation of the Endpoints or EndpointSlice default/kubernetes: the IP address at
	// which pods of an edge node reach the API server, which is that of the local lite-apiserver.
	AnnotationLocalEndpoint = "superedge.io/local-endpoint"
	// AnnotationLocalPort is the TCP port that goes with AnnotationLocalEndpoint.
	AnnotationLocalPort = "superedge.io/local-port"

	// LabelGridSelector is a label of grids' children: the name of the grid.
	LabelGridSelector = "superedge.io/grid-selector"
	// LabelGridUniqKey is a label of grids' children: the grid's gridUniqKey, as KeyLabelValue writes it.
	LabelGridUniqKey = "superedge.io/grid-uniq-key"

	// LabelGridSite is a label of grids' workloads: the site. Unless spec.siteLabel is false, the pods of a workload
	// that the controller creates have it too, and the workload's selector requires it.
	LabelGridSite = "superedge.io/grid-site"

	// LabelCheck is a label of the Jobs of checks, and of their pods: the name of the grid. LabelGridSite has the site.
	LabelCheck = "superedge.io/check"

	// LabelEdgeNode is a label of nodes: which of the wrapper, the DNS hosts daemon and a kube-proxy that uses the
	// wrapper the manifests run there as pods. Its values are EdgeNodePods, EdgeNodeSystemd and EdgeNodeStatic. The
	// manifests leave nodes without it alone.
	LabelEdgeNode = "superedge.io/application-grid"
	// EdgeNodePods is the value with which all of them run.
	EdgeNodePods = "true"
	// EdgeNodeSystemd is the value with which only kube-proxy runs: wrapper and daemon are systemd units there.
	EdgeNodeSystemd = "systemd"
	// EdgeNodeStatic is the value with which none runs, nor kubeadm's kube-proxy: they start without an API server
	// there, as static pods or as systemd units.
	EdgeNodeStatic = "static"

	// LabelKubeProxy is a label of nodes. On kubeadm's clusters the controller sets it once an edge node's wrapper is
	// ready. With it kubeadm's kube-proxy makes room for kube-proxy-edge then.
	LabelKubeProxy = "superedge.io/kube-proxy"
	// KubeProxyEdge is the value of LabelKubeProxy.
	KubeProxyEdge = "edge"

	// LabelServiceProxyName is Kubernetes' label of Services that kube-proxy leaves to the program that it names.
	LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

	// NodeStartsAlone is a condition of a Node with lite-apiserver: whether its pods would start again without
	// kube-apiserver.
	NodeStartsAlone = "superedge.io/StartsAlone"
)

// StartsAlone returns the condition NodeStartsAlone of a node; nil if the node has none.
func StartsAlone(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == NodeStartsAlone {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// IsEdgeNode reports whether a node with this value of LabelEdgeNode has the wrapper.
func IsEdgeNode(value string) bool {
	switch value {
	case EdgeNodePods, EdgeNodeSystemd, EdgeNodeStatic:
		return true
	}
	return false
}

// Names of OpenYurt, which count where AnnotationTopologyKeys is absent. See package topology.
const (
	// AnnotationOpenYurtTopologyKeys is an annotation of Services. Its value is one of the three below.
	AnnotationOpenYurtTopologyKeys = "openyurt.io/topologyKeys"

	// OpenYurtTopologyNode closes the Service on every node.
	OpenYurtTopologyNode = "kubernetes.io/hostname"
	// OpenYurtTopologyZone closes the Service in every zone of Kubernetes.
	OpenYurtTopologyZone = "kubernetes.io/zone"
	// OpenYurtTopologyNodePool closes the Service in every NodePool.
	OpenYurtTopologyNodePool = "openyurt.io/nodepool"

	// LabelOpenYurtNodePool is a label of nodes: the name of the node's NodePool.
	LabelOpenYurtNodePool = "apps.openyurt.io/nodepool"
)

const (
	// AnnotationGridUniqKey is an annotation of grids' children: the grid's gridUniqKey, if it is not a valid value for
	// LabelGridUniqKey.
	AnnotationGridUniqKey = "superedge.io/grid-uniq-key"

	// AnnotationAppliedDigest is an annotation of grids' children: a digest of the configuration that the controller
	// applied last. The digest and the child's managedFields show whether the controller has to apply it again.
	AnnotationAppliedDigest = "superedge.io/applied-digest"

	// AnnotationApproveRemoval is an annotation of grids. With the value that the condition Degraded names it approves
	// the removal of many sites at once.
	AnnotationApproveRemoval = "superedge.io/approve-removal"

	// AnnotationRevision is on a child of a grid with a rollout: the name of the revision that it has.
	AnnotationRevision = "superedge.io/revision"

	// AnnotationHold on a child keeps the controller from changing the child. Its value says why.
	AnnotationHold = "superedge.io/hold"

	// AnnotationVariant is on a child of a grid whose overrides labels of nodes decide on: "<revision>@<variant>", the
	// template and overrides that it was made of.
	AnnotationVariant = "superedge.io/variant"

	// AnnotationApproved on a grid approves of a wave in one attempt of a rollout: the value of status.rollout.awaits.
	AnnotationApproved = "superedge.io/approved"

	// AnnotationResumed on a grid continues a halted rollout: its value is status.rollout.haltTime.
	AnnotationResumed = "superedge.io/resumed"

	// AnnotationApprovedBy on a grid is the name of the user who has set one of the annotations that approve, resume or
	// skip. The API server checks it where the approval policy is installed.
	AnnotationApprovedBy = "superedge.io/approved-by"

	// AnnotationCompleted on a ControllerRevision is when it had run in all sites of its grid.
	AnnotationCompleted = "superedge.io/completed"

	// AnnotationRestarted on the pods of a workload is when kubectl grid rollout restart has restarted the site.
	AnnotationRestarted = "superedge.io/restarted-at"

	// AnnotationAtOnce on a grid gives a revision to all sites at once, without waves: "<revision>/<generation>". It is
	// good for this generation of the grid.
	AnnotationAtOnce = "superedge.io/at-once"

	// AnnotationCRDVersion is an annotation of the grids' CRDs: a number that grows with every change of them. The
	// controller replaces only CRDs that have a smaller number, or none.
	AnnotationCRDVersion = "superedge.io/crd-version"

	// CRDVersion is the value of AnnotationCRDVersion in the CRDs of this version.
	CRDVersion = 13

	// ServiceSuffix ends the name of a ServiceGrid's Service.
	ServiceSuffix = "-svc"
)

// Reasons of events, of the grids' conditions and of sites' states.
const (
	// ReasonReady means that every site is ready.
	ReasonReady = "Ready"
	// ReasonAsDesired means that nothing is being changed, and that nothing is wrong.
	ReasonAsDesired = "AsDesired"
	// ReasonSitesNotReady means that pods are missing or not ready in some sites.
	ReasonSitesNotReady = "SitesNotReady"
	// ReasonSitesProgressing means that workloads are being created, changed or removed.
	ReasonSitesProgressing = "SitesProgressing"
	// ReasonSitesFailed means that some sites cannot be what the grid says.
	ReasonSitesFailed = "SitesFailed"
	// ReasonSitesStalled means that some workloads make no progress any more.
	ReasonSitesStalled = "SitesStalled"
	// ReasonSitesUnreachable means that the control plane has lost contact with all nodes of all sites.
	ReasonSitesUnreachable = "SitesUnreachable"
	// ReasonMassRemoval means that more sites have vanished than spec.removal allows without an approval.
	ReasonMassRemoval = "MassRemoval"
	// ReasonProgressDeadlineExceeded means that a workload has made no progress for spec.progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	// ReasonReplicasHandedOver means that a template no longer sets replicas, and that workloads keep theirs.
	ReasonReplicasHandedOver = "ReplicasHandedOver"
	// ReasonNoEffect means that something in the spec has no effect.
	ReasonNoEffect = "NoEffect"
	// ReasonNotAllowed means that the controller's flags do not allow what the grid asks for.
	ReasonNotAllowed = "NotAllowed"
	// ReasonNoSites means that no node has the label gridUniqKey.
	ReasonNoSites = "NoSites"
	// ReasonInvalidKey means that gridUniqKey is not the key of a label.
	ReasonInvalidKey = "InvalidKey"
	// ReasonTemplateNotFound means that a site's template is not in templatePool, or that spec.template is missing.
	ReasonTemplateNotFound = "TemplateNotFound"
	// ReasonInvalidTemplate means that a template is not a spec into which a site can be written.
	ReasonInvalidTemplate = "InvalidTemplate"
	// ReasonInvalidName means that the name made of grid and site is not valid.
	ReasonInvalidName = "InvalidName"
	// ReasonNameConflict means that the name belongs to an object that is not this grid's.
	ReasonNameConflict = "NameConflict"
	// ReasonRejected means that the API server refused an object because of its content.
	ReasonRejected = "Rejected"
	// ReasonSyncFailed means that a request to the API server failed; it is tried again.
	ReasonSyncFailed = "SyncFailed"
	// ReasonSiteVanished means that no node is in the site any more.
	ReasonSiteVanished = "SiteVanished"
	// ReasonSiteReturned means that a site that had vanished has a node again.
	ReasonSiteReturned = "SiteReturned"
	// ReasonApplied means that children were created or changed.
	ReasonApplied = "Applied"
	// ReasonRemoved means that children of vanished sites were deleted.
	ReasonRemoved = "Removed"
	// ReasonHeld means that an annotation of the workload keeps it as it is.
	ReasonHeld = "Held"
	// ReasonRevisionGone means that the ControllerRevision of a workload was deleted.
	ReasonRevisionGone = "RevisionGone"
	// ReasonRollout means that a rollout has begun, or has reached another wave or phase.
	ReasonRollout = "Rollout"
	// ReasonRolloutHalted means that a rollout has halted or goes back, because too many sites have failed.
	ReasonRolloutHalted = "RolloutHalted"
	// ReasonTemplatesDeleted means that unused templates were removed from templatePool.
	ReasonTemplatesDeleted = "TemplatesDeleted"
)
