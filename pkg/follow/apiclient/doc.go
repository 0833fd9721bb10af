// Package apiclient connects to the API server: it reads flags and a kubeconfig, notices a dead link, and gives up
// requests that a server no longer answers. At the edge a broken link does not report an error; it falls silent.
//
// All programs use it. Packages follow and upstream decide what to request over a connection.
package apiclient
