package cluster

import "context"

// Interpose starts an Interposer before kube-apiserver for whoever is told its URL. It ends with Close, or with the
// process.
func (c *Cluster) Interpose(ctx context.Context) (*Interposer, error) { return c.startInterposer(ctx) }

// URL is where it serves.
func (i *Interposer) URL() string { return i.url() }

// Close ends it and all that is under way.
func (i *Interposer) Close() error { return i.close() }
