// Package liveheap measures the heap, for tests of bounds on memory.
package liveheap

import (
	"runtime"
	"runtime/pprof"
)

// Size returns the size of the objects on the heap that are still needed, in bytes.
func Size() int {
	runtime.GC()
	runtime.GC() // it frees what the first one has found in pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc) //nolint:gosec // no heap is as large
}

// Threads returns how many threads the runtime has made.
func Threads() int { return pprof.Lookup("threadcreate").Count() }
