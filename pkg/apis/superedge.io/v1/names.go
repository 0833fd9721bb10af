package v1

const (
	// AnnotationTopologyKeys, on a Service, is a JSON array of node label keys. It governs which endpoints
	// of the Service a node may see; see package topology for what it means. Without it, or with an empty
	// array, the Service is not governed.
	AnnotationTopologyKeys = "topologyKeys"

	// AnnotationLocalEndpoint, on the Endpoints or EndpointSlice default/kubernetes, is the IP address at
	// which pods of an edge node reach the API server: that of the local lite-apiserver.
	AnnotationLocalEndpoint = "superedge.io/local-endpoint"
	// AnnotationLocalPort is the TCP port that goes with AnnotationLocalEndpoint.
	AnnotationLocalPort = "superedge.io/local-port"

	// LabelGridSelector, on a grid's child, is the name of the grid.
	LabelGridSelector = "superedge.io/grid-selector"
	// LabelGridUniqKey, on a grid's child, is the grid's gridUniqKey.
	LabelGridUniqKey = "superedge.io/grid-uniq-key"
)
