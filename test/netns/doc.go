// Package netns gives a program network namespaces in which it can start processes, open sockets and
// configure links, without leaving its own namespace.
//
// A Namespace owns one operating system thread that entered it for good. Everything that must happen inside
// (fork, socket, sysctl) runs on that thread. Two properties follow from it and the embedded cluster relies
// on both: processes started through a Namespace die with the program even if it is killed with SIGKILL
// (the parent-death signal belongs to the thread that forked), and a socket made inside stays inside
// although the goroutines that use it run anywhere.
//
// Namespaces are named under /run/netns as `ip netns` does it, so that a user can enter them. The kernel
// keeps a named namespace after its maker has died: see List and Remove for the sweep.
package netns
