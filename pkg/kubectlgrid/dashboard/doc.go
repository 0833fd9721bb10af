// Package dashboard is kubectl grid dashboard: a page on the loopback that shows the sites of a cluster, what of its
// grids and Services is not well, and whom a Service reaches, as it changes. It has the user's own rights, and writes
// nothing to the cluster.
//
// # The way of a change
//
// A source follows one resource, and keeps of its objects what the page needs in facts. What follows from the facts,
// package gridview says: the same functions make what the other commands print. It is computed when somebody asks, and
// kept until one of the objects that it follows from changes. A change wakes the pages' streams, at most a few times a
// second; a stream carries the number of the newest revision and nothing else. The page then asks for what it shows.
// So nothing is queued for a page that is slow, and a page that is closed costs nothing.
//
// # Who may ask
//
// The server listens on an address of the loopback only, and answers requests for exactly that address: a web page
// whose name resolves to the loopback (DNS rebinding) names another host. Everything about the cluster is below /api/,
// and takes a token that is recreated at every start. The token comes to the page in the fragment of the URL that the
// command prints: browsers do not send fragments. The page keeps the token and sends it as a header. It uses
// no cookie, because browsers would also send that to servers on other ports of the loopback.
package dashboard
