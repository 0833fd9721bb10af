// Package serve writes API responses from a history.History: it has one LIST, one WATCH and one GET writer for all
// resources, the negotiation of their encoding, and errors as metav1.Status.
//
// It behaves like kube-apiserver as far as clients of the served resources can tell: resourceVersions, resuming, 410,
// bookmarks and initial events. Package filters decides which requests come here. WriteObject, WriteList, BeginWatch
// and WriteTyped write answers without a Server: lite-apiserver's, from objects of no History at the upstream's own
// resourceVersions.
package serve
