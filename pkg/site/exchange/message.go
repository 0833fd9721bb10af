package exchange

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

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
	// ReasonAddress is a word that a pod has an address that none of that node's pods can have, or that is known to be
	// another's.
	ReasonAddress = "address"
	// reasonFormat is what cannot be read: it is damaged, too large, or in a version that this program does not know.
	reasonFormat = "format"
)

// Reasons returns all reasons for which something is ignored.
func Reasons() []string {
	return []string{reasonStranger, reasonFlood, reasonKey, ReasonAddress, reasonFormat}
}

// version tells one word of a node from another: the run is drawn by a process when it starts, and the sequence counts.
type version struct{ run, sequence uint64 }

// Flags of questions and answers.
const (
	// flagNeeds says that the sender needs to know how its neighbours' pods are.
	flagNeeds = 1 << iota
	// flagLeaving says that the sender's wrapper is being stopped, which says nothing of the node.
	flagLeaving
	// flagPods says that the sender knows how its pods are.
	flagPods
)

// message is a question, which has the version that is known, or an answer.
type message struct {
	flags byte
	version
	// pods is JSON in an answer to another version than the newest.
	pods []byte
}

// headSize is the number of bytes before the pods: the flags, the run, and the sequence.
const headSize = 1 + 8 + 8

func (m message) encode() []byte {
	encoded := append(make([]byte, 0, headSize+len(m.pods)), m.flags)
	encoded = binary.BigEndian.AppendUint64(encoded, m.run)
	encoded = binary.BigEndian.AppendUint64(encoded, m.sequence)
	return append(encoded, m.pods...)
}

func parseMessage(encoded []byte) (message, error) {
	if len(encoded) < headSize {
		return message{}, ignore(reasonFormat, "a message of %d bytes", len(encoded))
	}
	return message{
		flags:   encoded[0],
		version: version{binary.BigEndian.Uint64(encoded[1:]), binary.BigEndian.Uint64(encoded[9:])},
		pods:    encoded[headSize:],
	}, nil
}

const (
	// maxPods is the most pods of an answer: those that package cri lists at most.
	maxPods = 2000
	// maxPodAddresses is the most addresses of a pod, maxText of its namespace, name, UID and reason.
	maxPodAddresses, maxText = 8, 253
)

// podsMessage are the pods of an answer.
type podsMessage struct {
	// AgeMillis is how long ago the node saw these pods. Clocks of a site without a link may differ.
	AgeMillis int64   `json:"ageMillis"`
	Pods      podList `json:"pods"`
}

type podList []podMessage

type podMessage struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Serving   bool         `json:"serving,omitempty"`
	Doubted   bool         `json:"doubted,omitempty"`
	Why       string       `json:"why,omitempty"`
}

// UnmarshalJSON implements json.Unmarshaler. It reads pod by pod, and no more than maxPods: a pod without anything has
// 3 bytes in JSON, and about 100 here.
func (p *podList) UnmarshalJSON(encoded []byte) error {
	list := json.NewDecoder(bytes.NewReader(encoded))
	begin, err := list.Token()
	if err != nil || begin == nil {
		return err
	}
	if begin != json.Delim('[') {
		return fmt.Errorf("the pods begin with %v", begin)
	}
	for list.More() {
		if len(*p) == maxPods {
			return fmt.Errorf("it has more than %d pods", maxPods)
		}
		var pod podMessage
		if err := list.Decode(&pod); err != nil {
			return err
		}
		*p = append(*p, pod)
	}
	return nil
}

// encodePods encodes a node's word in a fixed order.
func encodePods(word *facts.LivePods) ([]byte, error) {
	all := podsMessage{
		AgeMillis: max(time.Since(word.AsOf), 0).Milliseconds(), Pods: make(podList, 0, len(word.Pods)),
	}
	for key, pod := range word.Pods {
		all.Pods = append(all.Pods, podMessage{
			key.Namespace, key.Name, key.UID, pod.Addresses, pod.Serving, pod.Doubted,
			pod.Why[:min(len(pod.Why), maxText)],
		})
	}
	slices.SortFunc(all.Pods, func(a, b podMessage) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
			strings.Compare(a.UID, b.UID))
	})
	return json.Marshal(all)
}

var errPod = errors.New("a pod without a name, or with too much of something")

// decodePods returns what a node says that was asked then. Pods with an address that cannot be theirs are left out, so
// that they are not shown.
func decodePods(encoded []byte, asked time.Time, possible func(netip.Addr) bool) (
	word *facts.LivePods, leftOut int, err error,
) {
	var all podsMessage
	if err := json.Unmarshal(encoded, &all); err != nil {
		return nil, 0, err
	}
	if all.AgeMillis < 0 || all.AgeMillis > (365*24*time.Hour).Milliseconds() {
		return nil, 0, fmt.Errorf("it is %d ms old", all.AgeMillis)
	}
	word = &facts.LivePods{
		AsOf: asked.Add(-time.Duration(all.AgeMillis) * time.Millisecond),
		Pods: make(map[facts.PodKey]facts.LivePod, len(all.Pods)),
	}
	for _, pod := range all.Pods {
		if pod.Namespace == "" || pod.Name == "" || len(pod.Addresses) > maxPodAddresses ||
			max(len(pod.Namespace), len(pod.Name), len(pod.UID), len(pod.Why)) > maxText {
			return nil, 0, errPod
		}
		for i := range pod.Addresses {
			pod.Addresses[i] = pod.Addresses[i].Unmap()
		}
		if slices.ContainsFunc(pod.Addresses, func(a netip.Addr) bool { return !possible(a) }) {
			leftOut++
			continue
		}
		word.Pods[facts.PodKey{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}] = facts.LivePod{
			Addresses: pod.Addresses, Serving: pod.Serving, Doubted: pod.Doubted, Why: pod.Why,
		}
	}
	return word, leftOut, nil
}

// sameWord reports whether two words, which may be nil, say the same, whenever that was.
func sameWord(a, b *facts.LivePods) bool {
	if a == nil || b == nil {
		return a == b
	}
	return maps.EqualFunc(a.Pods, b.Pods, func(x, y facts.LivePod) bool {
		return x.Serving == y.Serving && x.Doubted == y.Doubted && x.Why == y.Why &&
			slices.Equal(x.Addresses, y.Addresses)
	})
}

// podAddress reports whether any pod can have an address: Kubernetes allows no others in endpoints.
func podAddress(address netip.Addr) bool {
	return address.IsValid() && address.Zone() == "" && !address.IsUnspecified() && !address.IsLoopback() &&
		!address.IsMulticast() && !address.IsLinkLocalUnicast() &&
		address != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
