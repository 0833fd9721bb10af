package faults

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
)

// behindTheHub is a node whose wrapper follows nothing but its share.
var behindTheHub = cluster.NodeSpec{WrapperArgs: []string{"--hub"}}

func killReplica(number int) func(*site) {
	return func(*site) { shared.Hubs[number].Kill() }
}

func launchReplica(number int) func(*site) {
	return func(s *site) { s.Must(shared.Hubs[number].Launch()) }
}

// eachReplica does something to every replica.
func eachReplica(do func(*cluster.HubReplica)) func(*site) {
	return func(*site) {
		for _, replica := range shared.Hubs {
			do(replica)
		}
	}
}

// cutOff lets a replica's watches of the API server end, and begin no more.
func cutOff(replica *cluster.HubReplica) {
	replica.Interposer.Behave(cluster.AnswerStatus(http.StatusInternalServerError,
		string(metav1.StatusReasonInternalError), 0))
}

func connect(replica *cluster.HubReplica) { replica.Interposer.Behave(cluster.Behaviour{}) }

// TestHub lets faults befall the hub, one after the other: every node behind it has a part in each.
func TestHub(t *testing.T) {
	faults := []fault{
		{
			name: "a replica of the hub killed -9", lasts: forms(10*time.Second, 30*time.Second),
			bound:   90 * time.Second,
			inflict: killReplica(0), relieve: launchReplica(0),
		},
		{
			name: "the other replica of the hub killed -9", lasts: forms(10*time.Second, 30*time.Second),
			bound:   90 * time.Second,
			inflict: killReplica(1), relieve: launchReplica(1),
		},
		{
			name: "all replicas of the hub killed -9", lasts: forms(10*time.Second, 3*time.Minute),
			bound: 2 * time.Minute, isolates: true,
			inflict: eachReplica(func(r *cluster.HubReplica) { r.Kill() }),
			relieve: func(s *site) {
				for i := range shared.Hubs {
					launchReplica(i)(s)
				}
			},
		},
		{
			name: "hub slow by 1 s", lasts: forms(10*time.Second, time.Minute), bound: deadline,
			inflict: func(*site) { shared.HubFront.SetDelay(time.Second) },
			relieve: func(*site) { shared.HubFront.SetDelay(0) },
		},
		{
			name: "hub cut off from the API server", lasts: forms(10*time.Second, 2*time.Minute),
			bound: 2 * time.Minute, isolates: true,
			inflict: eachReplica(cutOff), relieve: eachReplica(connect),
		},
		{
			name: "API server killed -9 and started, with a hub", bound: 2 * time.Minute,
			inflict: func(s *site) {
				ctx, cancel := context.WithTimeout(s.ctx, 2*deadline)
				defer cancel()
				// Asked to stop, it would wait for the streams that it hands on, a minute at most.
				shared.APIServer.Kill()
				s.Must(shared.APIServer.Start(ctx))
			},
		},
		{
			name: "wrapper changes over from the hub, and back", lasts: forms(10*time.Second, time.Minute),
			bound: deadline, restarts: true,
			inflict: func(s *site) {
				s.node.Wrapper.SetArgs(slices.DeleteFunc(s.node.Wrapper.Args(),
					func(arg string) bool { return arg == "--hub" }))
				s.Must(s.node.Wrapper.Restart(s.ctx))
			},
			relieve: func(s *site) {
				s.node.Wrapper.SetArgs(append(s.node.Wrapper.Args(), "--hub"))
				s.Must(s.node.Wrapper.Restart(s.ctx))
			},
		},
		{
			name: "10 % loss to the hub", lasts: forms(10*time.Second, time.Minute), bound: deadline,
			inflict: func(s *site) { s.Must(s.node.LoseOnLink(s.ctx, 10)) }, relieve: restoreLink,
		},
	}
	if !testing.Short() {
		// What it knows gets old, and who follows it hears nothing, until it finds that out.
		faults = append(faults, fault{
			name: "one replica of the hub cut off from the API server", lasts: 2 * time.Minute, bound: 2 * time.Minute,
			inflict: func(*site) { cutOff(shared.Hubs[0]) }, relieve: func(*site) { connect(shared.Hubs[0]) },
		}, fault{
			name: "the other replica of the hub cut off from the API server", lasts: 2 * time.Minute,
			bound:   2 * time.Minute,
			inflict: func(*site) { cutOff(shared.Hubs[1]) }, relieve: func(*site) { connect(shared.Hubs[1]) },
		})
	}
	for _, f := range faults {
		f.node = behindTheHub
		t.Run(f.name, f.run)
	}
}
