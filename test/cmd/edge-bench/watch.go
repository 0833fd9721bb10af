package main

import (
	"bufio"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// quiet is how long nothing must arrive for a burst of events to count as over.
const quiet = 500 * time.Millisecond

// slicesClient returns what begins a request for what kube-proxy follows of slices.
func slicesClient(config *rest.Config) (func() *rest.Request, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return func() *rest.Request {
		return client.DiscoveryV1().RESTClient().Get().Resource("endpointslices").
			Param("labelSelector", "!"+corev1.IsHeadlessService)
	}, nil
}

// arrivals are the times at which the lines of a JSON watch of all slices came. (Decoding whole objects would make the
// measuring client the bottleneck.)
type arrivals struct {
	mu    sync.Mutex
	at    []time.Time
	ended error
}

// watchSlices returns when what is there has come. The watch ends with ctx.
func watchSlices(ctx context.Context, config *rest.Config) (*arrivals, error) {
	request, err := slicesClient(config)
	if err != nil {
		return nil, err
	}
	body, err := request().Param("watch", "true").Param("timeoutSeconds", "3000").Stream(ctx)
	if err != nil {
		return nil, fmt.Errorf("watching slices: %w", err)
	}
	a := &arrivals{}
	go func() {
		defer body.Close()
		for lines := bufio.NewReaderSize(body, 1<<20); a.ended == nil; {
			_, err := lines.ReadBytes('\n')
			a.mu.Lock()
			a.at, a.ended = append(a.at, time.Now()), err
			a.mu.Unlock()
		}
	}()
	_, err = a.settle(ctx)
	return a, err
}

// settle waits until nothing has come for a while, and takes the times of what has come since the last time.
func (a *arrivals) settle(ctx context.Context) ([]time.Time, error) {
	for begin := time.Now(); ; {
		if err := pause(ctx, quiet/10); err != nil {
			return nil, err
		}
		a.mu.Lock()
		at, ended, last := a.at, a.ended, begin
		if len(at) > 0 {
			last = at[len(at)-1]
		}
		settled := time.Since(last) > quiet
		if settled {
			a.at = nil
		}
		a.mu.Unlock()
		switch {
		case ended != nil:
			return nil, fmt.Errorf("a watch ended: %w", ended)
		case settled:
			return at, nil
		}
	}
}
