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
)
