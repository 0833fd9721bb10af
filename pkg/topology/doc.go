// Package topology decides which endpoints of a Service a node may see. These are the rules that the whole project
// implements.
//
// A Service carries an ordered list of node label keys: the annotation topologyKeys, or where that is absent the
// annotation openyurt.io/topologyKeys, which names one. An endpoint matches a key when the endpoint's node and the
// viewing node carry the same value of it. This package reads the keys, ranks endpoints by the first key they match,
// chooses for each slice of a Service the value by which it is shown (Keys.Choices), and turns the rank of that value
// into a Decision that keeps or hides each endpoint. The functions are pure: no I/O, no locks, no state.
//
// It knows nothing of watching or of HTTP; packages storage/facts and storage/view apply it.
package topology
