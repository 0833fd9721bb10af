// Package apiclient reaches the API server: it reads the connection from flags and a kubeconfig, notices a link that is
// dead, and gives up requests that a server no longer answers. At the edge a broken link does not report an error; it
// falls silent.
//
// It belongs to no program: the wrapper, the controller and the daemon use it. What is asked for over a connection is
// package follow's and package upstream's business.
package apiclient
