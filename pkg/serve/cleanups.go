package serve

// cleanups are the calls to make when a request is over.
type cleanups struct {
	calls    []func()
	detached bool
}

// add adds a call. It comes before those that were added earlier.
func (c *cleanups) add(call func()) { c.calls = append(c.calls, call) }

// runUnlessDetached makes the calls, unless a detached stream does.
func (c *cleanups) runUnlessDetached() {
	if !c.detached {
		c.run()
	}
}

func (c *cleanups) run() {
	for _, call := range c.calls {
		defer call() // all of them, also if one panics
	}
}
