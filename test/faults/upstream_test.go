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
		interposed("upstream answers 500",
			cluster.AnswerStatus(http.StatusInternalServerError, string(metav1.StatusReasonInternalError), 0)),
		interposed("upstream answers 429",
			cluster.AnswerStatus(http.StatusTooManyRequests, string(metav1.StatusReasonTooManyRequests), time.Second)),
		interposed("upstream answers 410", cluster.AnswerStatus(http.StatusGone, string(metav1.StatusReasonExpired),
			0)),
		interposed("upstream answers garbage", cluster.AnswerGarbage()),
		interposed("upstream truncates", cluster.Truncate()),
		interposed("upstream silent after headers", cluster.Silence()),
		interposed("upstream hangs before headers", cluster.Hang()),
	}
	if !testing.Short() {
		// The connection lives, and only the bookmarks that kube-apiserver sends every minute tell, by their absence,
		// that the watches do not. It takes two of them until they are expected.
		forgotten := cluster.Silence()
		forgotten.Endures = true
		f := interposed("upstream forgets what is under way", forgotten)
		inflict := f.inflict
		f.inflict = func(s *site) {
			s.wait(130 * time.Second)
			inflict(s)
		}
		f.bound = 4 * time.Minute
		faults = append(faults, f)
	}
	runAll(t, faults)
}
