// Package upstream has the sources that the wrapper follows: resources of the API server, or of a caching proxy before
// it. Package follow lists and watches them. This package defines the sources, connects each to an input of the facts
// (package storage/facts), and summarises their states. It lists the addresses of nodes separately, and rarely.
package upstream
