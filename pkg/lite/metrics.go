package lite

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/follow"
)

const namespace = "lite_apiserver"

type metrics struct {
	registry *prometheus.Registry
	answers  *prometheus.CounterVec
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "offline_answers_total",
			Help: "Requests while kube-apiserver was away: answered from what is kept, expired with 410, so that the " +
				"client lists again, refused with 503 or 429, or invalid."},
			[]string{"answer"}),
	}
	for _, answer := range []string{"kept", "expired", "refused", "invalid"} {
		m.answers.WithLabelValues(answer)
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value)
	}
	m.registry.MustRegister(m.answers,
		gauge("upstream_away", "1 while kube-apiserver is away, and the kubelet is answered from what is kept.",
			func() float64 {
				if s.link.AwayUntil() != nil {
					return 1
				}
				return 0
			}),
		gauge("pods", "Pods of the node that would start again, or would not, without kube-apiserver.",
			func() float64 { return float64(len(s.explained.Load().Pods)) }),
		gauge("stuck_pods", "Those of them that would not.",
			func() float64 { return float64(len(s.explained.Load().Stuck())) }),
		gauge("unsaved_changes", "Changes that are not on the disk.", func() float64 {
			count, _ := s.store.unsavedChanges()
			return float64(count)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: "journal_written_bytes_total",
			Help: "Bytes written to the store on the disk."}, func() float64 { return float64(s.bytesWritten()) }),
		follow.Metrics(namespace, s.follower.groups[""].States),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// answered counts an answer while kube-apiserver is away. err is the error that was answered; nil if none was.
func (m *metrics) answered(err error) {
	answer := "invalid"
	switch {
	case err == nil, apierrors.IsNotFound(err):
		answer = "kept"
	case apierrors.IsResourceExpired(err):
		answer = "expired"
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err):
		answer = "refused"
	}
	m.answers.WithLabelValues(answer).Inc()
}
