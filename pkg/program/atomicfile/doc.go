// Package atomicfile replaces files as a whole. Whatever fails, and whenever the machine loses its power, the old file
// or the new one is there, and never a part of one.
//
// The daemon writes its hosts file with it, and the wrapper and lite-apiserver their certificates.
package atomicfile
