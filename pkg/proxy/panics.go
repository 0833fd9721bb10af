package proxy

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// panickedSteps counts the steps of the cache that panicked, and lists the upstream again after them, because the
// change of such a step may be missing.
type panickedSteps struct {
	logger klog.Logger
	// relist lists the upstream again.
	relist func()

	count prometheus.Counter

	mu sync.Mutex
	// pause is the pause between a step that panicked and the list. It grows, because the list repeats the object that
	// caused the panic. Guarded by mu.
	pause wait.Backoff
	// due is set while a list is scheduled. Guarded by mu.
	due bool
}

func newPanickedSteps(logger klog.Logger) *panickedSteps {
	return &panickedSteps{
		logger: logger,
		count: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "cache_panics_total",
			Help: "Changes of the cache that panicked, which is a defect. The cache was rebuilt.",
		}),
		pause: wait.Backoff{Duration: 5 * time.Second, Factor: 2, Jitter: 1, Steps: 8, Cap: 10 * time.Minute},
	}
}

// stepPanicked is called within the step that panicked.
func (b *panickedSteps) stepPanicked(err error) {
	b.logger.Error(err, "A step of the cache panicked, which is a defect of this program: please report it. What is "+
		"shown stays, the cache is rebuilt, and the upstream is listed again")
	b.count.Inc()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.due {
		return
	}
	b.due = true
	time.AfterFunc(b.pause.Step(), func() {
		b.mu.Lock()
		b.due = false
		b.mu.Unlock()
		b.relist()
	})
}
