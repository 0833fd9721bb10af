// Package dashboard is kubectl grid dashboard: a page on the loopback that shows the sites of a cluster, the problems
// of its grids and Services, and which endpoints a Service reaches, as they change. It has the user's own rights, and
// writes nothing to the cluster.
//
// # How a change reaches the page
//
// A source follows one resource, and keeps the parts of its objects that the page needs in facts. Package gridview
// computes results from the facts, with the functions that make the output of the other commands. A result is computed
// on request, and kept until one of its objects changes. A visible page asks twice a second for the number of the
// newest revision, and for the data that it shows if that is another one. So nothing is queued for a slow page, and a
// closed page costs nothing.
//
// # Access
//
// The server listens on an address of the loopback only, and answers requests for exactly that address: a web page
// whose name resolves to the loopback (DNS rebinding) names another host. Everything about the cluster is below /api/,
// and takes a token that is recreated at every start. The page gets the token from the fragment of the URL that the
// command prints: browsers do not send fragments. The page keeps the token and sends it as a header. It uses no cookie,
// because browsers would also send that to servers on other ports of the loopback.
package dashboard
