package exchange

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

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
	// version tells one word of a node from another. A process begins with a random one and counts.
	version uint64
	// age is how long ago the node saw its pods, in milliseconds. Clocks of a site without a link may differ.
	age uint64
	// pods are those of an answer to another version than the newest: one JSON object a line.
	pods []byte
}

// headSize is the number of bytes before the pods.
const headSize = 1 + 8 + 8

func (m message) encode() []byte {
	encoded := append(make([]byte, 0, headSize+len(m.pods)), m.flags)
	encoded = binary.BigEndian.AppendUint64(encoded, m.version)
	encoded = binary.BigEndian.AppendUint64(encoded, m.age)
	return append(encoded, m.pods...)
}

func parseMessage(encoded []byte) (message, error) {
	if len(encoded) < headSize {
		return message{}, ignore(reasonFormat, "a message of %d bytes", len(encoded))
	}
	return message{
		flags: encoded[0], version: binary.BigEndian.Uint64(encoded[1:]), age: binary.BigEndian.Uint64(encoded[9:]),
		pods: encoded[headSize:],
	}, nil
}

const (
	// maxPods is the most pods of an answer: those that package cri lists at most.
	maxPods = 2000
	// maxPodAddresses is the most addresses of a pod, maxText of its namespace, name, UID and reason.
	maxPodAddresses, maxText = 8, 253
	// maxAge is the most age of an answer, in milliseconds: a year.
	maxAge = 365 * 24 * 3600 * 1000
)

type podMessage struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Serving   bool         `json:"serving,omitempty"`
	Doubted   bool         `json:"doubted,omitempty"`
	Why       string       `json:"why,omitempty"`
}

// encodePods encodes pods in a fixed order.
func encodePods(pods map[facts.PodKey]facts.LivePod) ([]byte, error) {
	var encoded bytes.Buffer
	lines := json.NewEncoder(&encoded)
	keys := slices.SortedFunc(maps.Keys(pods), func(a, b facts.PodKey) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+a.UID, b.Namespace+"/"+b.Name+"/"+b.UID)
	})
	for _, key := range keys {
		pod := pods[key]
		why := pod.Why[:min(len(pod.Why), maxText)]
		if err := lines.Encode(podMessage{
			key.Namespace, key.Name, key.UID, pod.Addresses, pod.Serving, pod.Doubted, why,
		}); err != nil {
			return nil, err
		}
	}
	if encoded.Len() > maxAnswer-1024 {
		return nil, fmt.Errorf("the pods would have %d bytes", encoded.Len())
	}
	return encoded.Bytes(), nil
}

var errPod = errors.New("too many pods, or a pod without a name, or with too much of something")

// decodePods returns the pods of an answer. Those with an address that no pod can have are left out, so that they are
// not shown.
func decodePods(encoded []byte) (pods map[facts.PodKey]facts.LivePod, leftOut int, err error) {
	pods = make(map[facts.PodKey]facts.LivePod)
	for lines := json.NewDecoder(bytes.NewReader(encoded)); lines.More(); {
		var pod podMessage
		if err := lines.Decode(&pod); err != nil {
			return nil, 0, err
		}
		if len(pods)+leftOut == maxPods || pod.Namespace == "" || pod.Name == "" ||
			len(pod.Addresses) > maxPodAddresses ||
			max(len(pod.Namespace), len(pod.Name), len(pod.UID), len(pod.Why)) > maxText {
			return nil, 0, errPod
		}
		for i := range pod.Addresses {
			pod.Addresses[i] = pod.Addresses[i].Unmap()
		}
		if !slices.ContainsFunc(pod.Addresses, isNoPods) {
			pods[facts.PodKey{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}] = facts.LivePod{
				Addresses: pod.Addresses, Serving: pod.Serving, Doubted: pod.Doubted, Why: pod.Why,
			}
		} else {
			leftOut++
		}
	}
	return pods, leftOut, nil
}

// isNoPods reports whether no pod can have an address: Kubernetes allows no such address in endpoints.
func isNoPods(address netip.Addr) bool {
	return !address.IsValid() || address.Zone() != "" || address.IsUnspecified() || address.IsLoopback() ||
		address.IsMulticast() || address.IsLinkLocalUnicast() || address == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
