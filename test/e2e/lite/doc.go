// Package lite has the tests of lite-apiserver as a process on a disk that loses its power, between a real
// kube-apiserver and a client that plays the kubelet, and of its further clients, with real ServiceAccounts.
package lite
