package v1

const (
	// AnnotationTopologyKeys stands on a Service: a JSON array of node label keys. It governs which endpoints
	// of the Service a node may see; see package topology for what it means. Without it, or with an empty
	// array, the Service is not governed.
	AnnotationTopologyKeys = "topologyKeys"

	// AnnotationLocalEndpoint stands on the Endpoints or EndpointSlice default/kubernetes: the IP address at
	// which pods of an edge node reach the API server: that of the local lite-apiserver.
	AnnotationLocalEndpoint = "superedge.io/local-endpoint"
	// AnnotationLocalPort is the TCP port that goes with AnnotationLocalEndpoint.
	AnnotationLocalPort = "superedge.io/local-port"

	// LabelGridSelector stands on a grid's child: the name of the grid.
	LabelGridSelector = "superedge.io/grid-selector"
	// LabelGridUniqKey stands on a grid's child: the grid's gridUniqKey.
	LabelGridUniqKey = "superedge.io/grid-uniq-key"

	// LabelGridUnit stands on a workload of a grid: its unit. With spec.unitLabel it also stands on the workload's pods
	// and in its selector.
	LabelGridUnit = "superedge.io/grid-unit"

	// LabelEdgeNode is, with the value "true", on the nodes that chose to have the wrapper, the daemon of names, and a
	// kube-proxy that asks the wrapper; with "systemd" on those that only want that kube-proxy, because the others are
	// no pods there. manifests/ leave all others alone.
	LabelEdgeNode = "superedge.io/application-grid"
)

// What OpenYurt wrote, and is understood where AnnotationTopologyKeys is absent. See package topology.
const (
	// AnnotationOpenYurtTopologyKeys is on a Service: one of the three values below.
	AnnotationOpenYurtTopologyKeys = "openyurt.io/topologyKeys"

	// OpenYurtTopologyNode closes the Service on every node.
	OpenYurtTopologyNode = "kubernetes.io/hostname"
	// OpenYurtTopologyZone closes the Service in every zone of Kubernetes.
	OpenYurtTopologyZone = "kubernetes.io/zone"
	// OpenYurtTopologyNodePool closes the Service in every NodePool.
	OpenYurtTopologyNodePool = "openyurt.io/nodepool"

	// LabelOpenYurtNodePool is on a Node: the name of its NodePool.
	LabelOpenYurtNodePool = "apps.openyurt.io/nodepool"
)

const (
	// AnnotationGridUniqKey stands on a grid's child: the grid's gridUniqKey in full, which LabelGridUniqKey
	// cannot always hold.
	AnnotationGridUniqKey = "superedge.io/grid-uniq-key"

	// AnnotationAppliedDigest stands on a grid's child: a digest of the configuration that the controller has applied
	// last. With the child's managedFields it reports whether anything is left to apply.
	AnnotationAppliedDigest = "superedge.io/applied-digest"

	// AnnotationApproveRemoval stands on a grid, with the value that condition Degraded tells: the removal of so many
	// units at once is meant.
	AnnotationApproveRemoval = "superedge.io/approve-removal"

	// AnnotationCRDVersion stands on the grids' CRDs: a number that grows with every change of them. The controller
	// replaces only what has a smaller one, or none.
	AnnotationCRDVersion = "superedge.io/crd-version"

	// ServiceSuffix ends the name of a ServiceGrid's Service.
	ServiceSuffix = "-svc"
)

// Reasons of events, of the grids' conditions and of units' states.
const (
	// ReasonReady: every unit is ready.
	ReasonReady = "Ready"
	// ReasonAsDesired: nothing is being done, and nothing is wrong.
	ReasonAsDesired = "AsDesired"
	// ReasonUnitsNotReady: pods are missing or not ready in some units.
	ReasonUnitsNotReady = "UnitsNotReady"
	// ReasonUnitsProgressing: workloads are being created, changed or removed.
	ReasonUnitsProgressing = "UnitsProgressing"
	// ReasonUnitsFailed: some units cannot be what the grid says.
	ReasonUnitsFailed = "UnitsFailed"
	// ReasonUnitsStalled: some workloads make no progress any more.
	ReasonUnitsStalled = "UnitsStalled"
	// ReasonUnitsUnreachable: the control plane has lost contact with all nodes of all units.
	ReasonUnitsUnreachable = "UnitsUnreachable"
	// ReasonMassRemoval: more units have vanished than spec.removal lets go without an approval.
	ReasonMassRemoval = "MassRemoval"
	// ReasonProgressDeadlineExceeded: a workload has made no progress for spec.progressDeadlineSeconds.
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	// ReasonReplicasHandedOver: a template names no replicas any more, and those that there are stay.
	ReasonReplicasHandedOver = "ReplicasHandedOver"
	// ReasonNoEffect: something in the spec has no effect.
	ReasonNoEffect = "NoEffect"
	// ReasonNotAllowed: the controller's flags do not allow what the grid asks for.
	ReasonNotAllowed = "NotAllowed"
	// ReasonNoUnits: no node has the label gridUniqKey.
	ReasonNoUnits = "NoUnits"
	// ReasonInvalidKey: gridUniqKey is not the key of a label.
	ReasonInvalidKey = "InvalidKey"
	// ReasonTemplateNotFound: a unit's template is not in templatePool, or spec.template is missing.
	ReasonTemplateNotFound = "TemplateNotFound"
	// ReasonInvalidTemplate: a template is no spec that a unit could be written into.
	ReasonInvalidTemplate = "InvalidTemplate"
	// ReasonInvalidName: the name that follows from grid and unit cannot be a name.
	ReasonInvalidName = "InvalidName"
	// ReasonNameConflict: the name belongs to an object that is not this grid's.
	ReasonNameConflict = "NameConflict"
	// ReasonRejected: the API server refused the object for what it says.
	ReasonRejected = "Rejected"
	// ReasonSyncFailed: the API server could not be asked, or not now.
	ReasonSyncFailed = "SyncFailed"
	// ReasonUnitVanished: no node is in the unit any more.
	ReasonUnitVanished = "UnitVanished"
	// ReasonUnitReturned: a node is in a unit again that had vanished.
	ReasonUnitReturned = "UnitReturned"
	// ReasonApplied: children were created or changed.
	ReasonApplied = "Applied"
	// ReasonRemoved: children of vanished units were deleted.
	ReasonRemoved = "Removed"
	// ReasonTemplatesDeleted: unused templates were removed from templatePool.
	ReasonTemplatesDeleted = "TemplatesDeleted"
)
