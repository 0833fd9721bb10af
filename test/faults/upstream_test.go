package faults

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
)

// interposed is a fault of the upstream's answers.
func interposed(name string, behaviour cluster.Behaviour) fault {
	return fault{
		name: name, lasts: forms(5*time.Second, 30*time.Second), bound: deadline, isolates: true,
		node:    cluster.NodeSpec{Interposed: true},
		inflict: func(s *site) { s.node.Interposer.Behave(behaviour) },
		relieve: func(s *site) {
			s.Logf("%d requests came to the upstream until the fault ended", s.node.Interposer.Served())
			s.node.Interposer.Behave(cluster.Behaviour{})
		},
	}
}

func TestUpstream(t *testing.T) {
	faults := []fault{
		interposed("upstream answers 500", cluster.AnswerStatus(http.StatusInternalServerError, string(metav1.StatusReasonInternalError), 0)),
		interposed("upstream answers 429", cluster.AnswerStatus(http.StatusTooManyRequests, string(metav1.StatusReasonTooManyRequests), time.Second)),
		interposed("upstream answers 410", cluster.AnswerStatus(http.StatusGone, string(metav1.StatusReasonExpired), 0)),
		interposed("upstream answers garbage", cluster.AnswerGarbage()),
		interposed("upstream truncates", cluster.Truncate()),
		interposed("upstream silent after headers", cluster.Silence()),
		interposed("upstream hangs before headers", cluster.Hang()),
	}
	if !testing.Short() {
		// kube-apiserver sends a bookmark a minute; only their absence tells that a watch is dead.
		forgotten := cluster.Silence()
		forgotten.Endures = true
		f := interposed("upstream forgets what is under way", forgotten)
		f.bound = 5 * time.Minute
		faults = append(faults, f)
	}
	runAll(t, faults)
}
