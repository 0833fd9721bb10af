// Package served names the resources that are kept and served, and why one may not be readable. What holds objects
// (package facts) and what serves them (package history) share it, and know nothing of each other.
package served
