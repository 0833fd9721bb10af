package siteexchange

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

// A node's word on its own pods is a facts.LivePods without About: when it ran which pods, by this node's clock.

// sameWord reports whether two words, which may be nil, say the same, whenever that was.
func sameWord(a, b *facts.LivePods) bool {
	if a == nil || b == nil {
		return a == b
	}
	return maps.EqualFunc(a.Pods, b.Pods, func(x, y facts.LivePod) bool {
		return x.Serving == y.Serving && slices.Equal(x.Addresses, y.Addresses)
	})
}

const (
	// wordVersion is the version of the form of questions, answers and meta.
	wordVersion = 1
	// maxAnswer is the most bytes of a sealed answer. A pod takes about 150.
	maxAnswer = 1 << 20
	// maxPods is the most pods of an answer: those that package cri lists at most.
	maxPods = 2000
	// maxPodAddresses is the most addresses of a pod, maxNameLength of its namespace, name and UID.
	maxPodAddresses, maxNameLength = 8, 253
)

// version tells one word of a node from another. Versions of one run are in order.
type version struct {
	// run is drawn by a process when it starts.
	run      uint64
	sequence uint64
}

// covers reports whether a word of this version need not be asked for again if the node says that it has the other.
func (v version) covers(other version) bool {
	return v.run == other.run && v.sequence >= other.sequence
}

// Flags of a meta.
const (
	// flagAway says that the node's upstream is away, so that it needs to know its neighbours' pods.
	flagAway = 1 << iota
	// flagLeaving says that the node's wrapper is being stopped, which says nothing of the node.
	flagLeaving
	// flagPods says that the node knows which pods it runs.
	flagPods
)

// meta is what memberlist carries of every node.
type meta struct {
	flags byte
	version
}

// metaSize is the number of bytes of an encoded meta: the version of the form, the flags, the run, and the sequence.
const metaSize = 2 + 8 + 8

func (m meta) encode() []byte {
	encoded := append(make([]byte, 0, metaSize), wordVersion, m.flags)
	encoded = binary.BigEndian.AppendUint64(encoded, m.run)
	return binary.BigEndian.AppendUint64(encoded, m.sequence)
}

// parseMeta reads an encoded meta. One of a later version may be longer.
func parseMeta(encoded []byte) (meta, error) {
	if len(encoded) < metaSize || encoded[0] < wordVersion {
		return meta{}, fmt.Errorf("%d bytes are no meta", len(encoded))
	}
	return meta{flags: encoded[1], version: version{
		run: binary.BigEndian.Uint64(encoded[2:]), sequence: binary.BigEndian.Uint64(encoded[10:]),
	}}, nil
}

// question is the sealed part of a question, as JSON.
type question struct {
	Version int `json:"version"`
	// Asker and Node are the names of who asks and who is asked.
	Asker string `json:"asker"`
	Node  string `json:"node"`
	// Challenge is what the asked node has sent on this connection. Nonce is drawn by the asker.
	Challenge []byte `json:"challenge"`
	Nonce     []byte `json:"nonce"`
}

// answer is the sealed part of an answer, as JSON.
type answer struct {
	Version int    `json:"version"`
	Asker   string `json:"asker"`
	Node    string `json:"node"`
	// Nonce is that of the question.
	Nonce    []byte `json:"nonce"`
	Run      uint64 `json:"run"`
	Sequence uint64 `json:"sequence"`
	// AgeMillis is how long ago the node ran these pods. Clocks of a site without a link may differ.
	AgeMillis int64      `json:"ageMillis"`
	Pods      answerPods `json:"pods"`
}

type answerPods []answerPod

// UnmarshalJSON implements json.Unmarshaler. It reads pod by pod, and no more than maxPods: a pod without anything has
// 3 bytes in JSON, and about 100 here.
func (p *answerPods) UnmarshalJSON(encoded []byte) error {
	list := json.NewDecoder(bytes.NewReader(encoded))
	begin, err := list.Token()
	if err != nil {
		return err
	}
	if begin == nil {
		return nil // null
	}
	if begin != json.Delim('[') {
		return fmt.Errorf("the pods begin with %v", begin)
	}
	*p = nil
	for list.More() {
		if len(*p) == maxPods {
			return fmt.Errorf("it has more than %d pods", maxPods)
		}
		var pod answerPod
		if err := list.Decode(&pod); err != nil {
			return err
		}
		*p = append(*p, pod)
	}
	return nil
}

type answerPod struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	UID       string       `json:"uid,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Serving   bool         `json:"serving,omitempty"`
}

// podsOf returns pods as an answer has them, in a fixed order.
func podsOf(word *facts.LivePods) answerPods {
	pods := make(answerPods, 0, len(word.Pods))
	for key, pod := range word.Pods {
		pods = append(pods, answerPod{
			Namespace: key.Namespace, Name: key.Name, UID: key.UID, Addresses: pod.Addresses, Serving: pod.Serving,
		})
	}
	slices.SortFunc(pods, func(a, b answerPod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
			strings.Compare(a.UID, b.UID))
	})
	return pods
}

// parseAnswer reads the JSON of an answer.
func parseAnswer(message []byte) (*answer, error) {
	a := &answer{}
	if err := json.Unmarshal(message, a); err != nil {
		return nil, err
	}
	switch {
	case a.Version != wordVersion:
		return nil, fmt.Errorf("it has version %d, not %d", a.Version, wordVersion)
	case a.AgeMillis < 0 || a.AgeMillis > (365*24*time.Hour).Milliseconds():
		return nil, fmt.Errorf("it is %d ms old", a.AgeMillis)
	}
	return a, nil
}

var errPod = errors.New("a pod without a name, or with too much of something")

// word returns what an answer says. Pods with an address that cannot be theirs are left out, so
// that they are not shown.
func (a *answer) word(asked time.Time, possible func(netip.Addr) bool) (word *facts.LivePods, leftOut int, err error) {
	word = &facts.LivePods{
		AsOf: asked.Add(-time.Duration(a.AgeMillis) * time.Millisecond),
		Pods: make(map[facts.PodKey]facts.LivePod, len(a.Pods)),
	}
	for _, pod := range a.Pods {
		if pod.Namespace == "" || pod.Name == "" || len(pod.Addresses) > maxPodAddresses ||
			max(len(pod.Namespace), len(pod.Name), len(pod.UID)) > maxNameLength {
			return nil, 0, errPod
		}
		addresses := make([]netip.Addr, 0, len(pod.Addresses))
		for _, address := range pod.Addresses {
			if address = address.Unmap(); possible(address) {
				addresses = append(addresses, address)
			}
		}
		if len(addresses) < len(pod.Addresses) {
			leftOut++
			continue
		}
		word.Pods[facts.PodKey{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}] = facts.LivePod{
			Addresses: addresses, Serving: pod.Serving,
		}
	}
	return word, leftOut, nil
}

// podAddress reports whether any pod can have an address: Kubernetes allows no others in endpoints.
func podAddress(address netip.Addr) bool {
	return address.IsValid() && address.Zone() == "" && !address.IsUnspecified() && !address.IsLoopback() &&
		!address.IsMulticast() && !address.IsLinkLocalUnicast() &&
		address != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
