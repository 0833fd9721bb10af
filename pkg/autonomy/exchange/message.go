package exchange

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// The reasons for which something is ignored: the values of the metric's label.
const (
	// reasonStranger is a connection from an address that no node of the site has.
	reasonStranger = "stranger"
	// reasonFlood is what exceeds the rate at which a node of the site may ask.
	reasonFlood = "flood"
	// reasonKey is what none of the keys opens. The sender has another key, belongs to another cluster, or replays.
	reasonKey = "key"
	// ReasonAddress is a word that a pod has an address that no pod can have, or that is known to be another's.
	ReasonAddress = "address"
	// reasonFormat is what cannot be read: it is damaged, too large, or in a version that this program does not know.
	reasonFormat = "format"
)

// Reasons returns all reasons for which something is ignored.
func Reasons() []string {
	return []string{reasonStranger, reasonFlood, reasonKey, ReasonAddress, reasonFormat}
}

const (
	// maxMessage is the most bytes of a message, and maxEnvelope what of it is not the pods. A pod takes about 250.
	maxMessage, maxEnvelope = 1 << 20, 256
	// maxPods is the most pods of an answer: those that package cri lists at most.
	maxPods = 2000
	// maxPodAddresses is the most addresses of a pod, those that it had and those that it has, and the most Services in
	// which it is idle; maxText is the most bytes of its namespace, name, UID and reason.
	maxPodAddresses, maxText = 8, 253
)

// message is what a node sends: a question, an answer, or both.
type message struct {
	Question *question `json:"question,omitempty"`
	Answer   *answer   `json:"answer,omitempty"`
}

// question asks a node for its pods.
type question struct {
	// Version is that of the word that the asker has; 0 if it has none.
	Version uint32 `json:"version,omitempty"`
	// Needs says that the asker needs to know the pods.
	Needs bool `json:"needs,omitempty"`
}

// answer is what a node says of its pods.
type answer struct {
	// Version tells one word of a node from another; 0 if it does not know its pods. A process begins with a random one
	// and counts.
	Version uint32 `json:"version,omitempty"`
	// Age is how long ago the node saw its pods. Clocks of a site without a link may differ.
	Age time.Duration `json:"age,omitempty"`
	// Pods has an array of podMessages, if the asker needs it and has another version.
	Pods json.RawMessage `json:"pods,omitempty"`
}

// podMessage is a pod of an answer.
type podMessage struct {
	facts.PodKey
	facts.LivePod
}

// encodePods encodes pods in a fixed order; nil if they are too many.
func encodePods(pods map[facts.PodKey]facts.LivePod) []byte {
	all := make([]podMessage, 0, len(pods))
	for key, pod := range pods {
		pod.Why = pod.Why[:min(len(pod.Why), maxText)]
		pod.Former = pod.Former[:min(len(pod.Former), maxPodAddresses)]
		pod.Idle = pod.Idle[:min(len(pod.Idle), maxPodAddresses)]
		all = append(all, podMessage{key, pod})
	}
	slices.SortFunc(all, func(a, b podMessage) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	encoded, err := json.Marshal(all)
	if err != nil || len(encoded) > maxMessage-maxEnvelope {
		klog.Background().Error(err, "Cannot tell the neighbours of this node's pods", "bytes", len(encoded))
		return nil
	}
	return encoded
}

// decodePods returns the pods of an answer. Those with an address that no pod can have are left out, so that they are
// not shown. Pods are read one by one, so that too many take no memory.
func decodePods(encoded []byte) (pods map[facts.PodKey]facts.LivePod, leftOut int, err error) {
	pods = make(map[facts.PodKey]facts.LivePod)
	all := json.NewDecoder(bytes.NewReader(encoded))
	if _, err := all.Token(); err != nil { // the bracket
		return nil, 0, err
	}
	for all.More() {
		var pod podMessage
		if err := all.Decode(&pod); err != nil {
			return nil, 0, err
		}
		if len(pods)+leftOut == maxPods || pod.Namespace == "" || pod.Name == "" ||
			max(len(pod.Addresses), len(pod.Former), len(pod.Idle)) > maxPodAddresses ||
			max(len(pod.Namespace), len(pod.Name), len(pod.UID), len(pod.Why)) > maxText {
			return nil, 0, errors.New("too many pods, or a pod without a name, or with too much of something")
		}
		for i := range pod.Addresses {
			pod.Addresses[i] = pod.Addresses[i].Unmap()
		}
		if slices.ContainsFunc(pod.Addresses, isNoPods) {
			leftOut++
			continue
		}
		pods[pod.PodKey] = pod.LivePod
	}
	return pods, leftOut, nil
}

// isNoPods reports whether no pod can have an address: Kubernetes allows no such address in endpoints.
func isNoPods(address netip.Addr) bool {
	return !address.IsValid() || address.Zone() != "" || address.IsUnspecified() || address.IsLoopback() ||
		address.IsMulticast() || address.IsLinkLocalUnicast() || address == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
