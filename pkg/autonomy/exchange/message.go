package exchange

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// The reasons for ignoring something: the values of the metric's label.
const (
	reasonStranger = "stranger" // a connection from an address that no node of the site has
	reasonFlood    = "flood"    // a question that exceeds the rate at which a node of the site may ask
	reasonKey      = "key"      // a connection without a valid key, because of another key, cluster or name
	ReasonAddress  = "address"  // a pod with an address that no pod can have, or that is known to belong to another
	reasonFormat   = "format"   // data that is damaged or too large
)

// Reasons returns all reasons for which something is ignored.
func Reasons() []string {
	return []string{reasonStranger, reasonFlood, reasonKey, ReasonAddress, reasonFormat}
}

const (
	// maxMessage is the largest size of a message in bytes, and maxEnvelope the part of it around the pods. A pod takes
	// about 250 bytes.
	maxMessage, maxEnvelope = 1 << 20, 256
	// maxPods is the largest number of pods of an answer, and maxIdle that of the Services in which they are idle, in
	// total.
	maxPods, maxIdle = 2000, 16000
	// maxPodAddresses is the largest number of a pod's addresses, and of its former addresses. maxText is the largest
	// size in bytes of its namespace, name, UID and reason.
	maxPodAddresses, maxText = 8, 253
)

// message is what a node sends: a question, an answer, or both.
type message struct {
	Question *question `json:"question,omitempty"`
	Answer   *answer   `json:"answer,omitempty"`
}

// question asks a node for its pods.
type question struct {
	// Version is the version of the report that the asker has; 0 if it has none.
	Version uint32 `json:"version,omitempty"`
	// Needs says that the asker needs to know the pods.
	Needs bool `json:"needs,omitempty"`
}

// answer is a node's report on its pods.
type answer struct {
	// Version identifies a report of a node; 0 if it does not know its pods at the moment, so that the last report
	// stands. A process begins with a random version and counts.
	Version uint32 `json:"version,omitempty"`
	// Age is how long ago the runtime listed the pods. It is not a time, because the clocks of a site without a link
	// may differ.
	Age time.Duration `json:"age,omitempty"`
	// Pods has an array of podMessages, if the asker needs it and has another version.
	Pods json.RawMessage `json:"pods,omitempty"`
}

// podMessage is a pod of an answer.
type podMessage struct {
	facts.PodKey
	facts.LivePod
}

// encodePods encodes pods in a fixed order; nil if they do not fit into a message.
func encodePods(pods map[facts.PodKey]facts.LivePod) []byte {
	all := make([]podMessage, 0, len(pods))
	for key, pod := range pods {
		pod.Why = pod.Why[:min(len(pod.Why), maxText)]
		pod.Former = pod.Former[:min(len(pod.Former), maxPodAddresses)]
		all = append(all, podMessage{key, pod})
	}
	slices.SortFunc(all, func(a, b podMessage) int { return a.Compare(b.PodKey) })
	encoded, err := json.Marshal(all)
	if err != nil || len(encoded) > maxMessage-maxEnvelope {
		klog.Background().Error(err, "Cannot encode this node's pods for the neighbours", "bytes", len(encoded))
		return nil
	}
	return encoded
}

// decodePods returns the pods of an answer. Pods with an address that no pod can have are left out, so that they are
// not shown. Pods are read one by one, so that too many do not take up memory.
func (e *Exchange) decodePods(encoded []byte) (map[facts.PodKey]facts.LivePod, error) {
	pods := make(map[facts.PodKey]facts.LivePod)
	all := json.NewDecoder(bytes.NewReader(encoded))
	_, err := all.Token() // the bracket
	for read, idle := 0, 0; err == nil && all.More(); read++ {
		var pod podMessage
		err = all.Decode(&pod)
		idle += len(pod.Idle)
		if err == nil && (idle > maxIdle || read == maxPods || pod.Namespace == "" || pod.Name == "" ||
			max(len(pod.Addresses), len(pod.Former)) > maxPodAddresses ||
			max(len(pod.Namespace), len(pod.Name), len(pod.UID), len(pod.Why)) > maxText) {
			err = errors.New("too many pods, or a pod without a name, or with too much of something")
		}
		for i := range pod.Addresses {
			pod.Addresses[i] = pod.Addresses[i].Unmap()
		}
		if slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool { return !facts.CanBePods(a) }) {
			e.config.Ignored(ReasonAddress)
		} else {
			pods[pod.PodKey] = pod.LivePod
		}
	}
	if err != nil {
		return nil, ignore(reasonFormat, "reading the pods of an answer: %w", err)
	}
	return pods, nil
}
