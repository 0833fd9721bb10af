package cri

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FuzzMessages holds what is read of a message against what the generated types read.
func FuzzMessages(f *testing.F) {
	for _, message := range []proto.Message{
		&runtimev1.ListPodSandboxResponse{Items: []*runtimev1.PodSandbox{{
			Id: "a", Metadata: &runtimev1.PodSandboxMetadata{Namespace: "n", Name: "a", Uid: "u", Attempt: 300},
			State: notReady, CreatedAt: 1_700_000_000_000_000_000, RuntimeHandler: "x",
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{configSource: "file", "c": "d"},
		}, {Id: "b", CreatedAt: -1}}},
		&runtimev1.ListContainersResponse{Containers: []*runtimev1.Container{{
			Id: "a", PodSandboxId: "b", Metadata: &runtimev1.ContainerMetadata{Name: "main", Attempt: 3},
			Image: &runtimev1.ImageSpec{Image: "i"}, State: exited, CreatedAt: 5, Labels: map[string]string{"a": "b"},
		}}},
		&runtimev1.PodSandboxStatusResponse{
			Status: &runtimev1.PodSandboxStatus{
				Id: "a", Network: &runtimev1.PodSandboxNetworkStatus{
					Ip: "10.0.0.1", AdditionalIps: []*runtimev1.PodIP{{Ip: "fd00::1"}, {}},
				},
				Linux: &runtimev1.LinuxPodSandboxStatus{Namespaces: &runtimev1.Namespace{
					Options: &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE, Pid: 1},
				}},
			},
			Info: map[string]string{"pid": "1"},
		},
	} {
		encoded, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		var (
			sandboxes  runtimev1.ListPodSandboxResponse
			containers runtimev1.ListContainersResponse
			network    runtimev1.PodSandboxStatusResponse
		)
		if read, err := all(message, readSandbox); isPlain(message, &sandboxes) && err == nil {
			same(t, read, eachOf(sandboxes.GetItems(), sandboxOf))
		}
		if read, err := all(message, readContainer); isPlain(message, &containers) && err == nil {
			same(t, read, eachOf(containers.GetContainers(), containerOf))
		}
		if mode, addresses, err := readNetwork(message); isPlain(message, &network) && err == nil {
			wantMode, want := networkOf(network.GetStatus())
			same(t, mode, wantMode)
			same(t, addresses, want)
		}
	})
}

// all reads the messages of a list.
func all[T any](message []byte, read func([]byte) (T, error)) (all []T, err error) {
	err = fields{1: func(value []byte) error {
		one, err := read(value)
		all = append(all, one)
		return err
	}}.read(message)
	return all, err
}

// isPlain reports whether a message is one that a runtime of these types may write: when it is written again, it is as
// long as it was. What has fields of other types, or a field that occurs twice, is not.
func isPlain(message []byte, into proto.Message) bool {
	if (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(message, into) != nil {
		return false
	}
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(into)
	return err == nil && len(again) == len(message)
}

func same[T any](t *testing.T, read, want T) {
	t.Helper()
	if !reflect.DeepEqual(read, want) {
		t.Errorf("read as\n%+v\nby the generated types\n%+v", read, want)
	}
}

func eachOf[From, To any](all []From, convert func(From) To) []To {
	var converted []To
	for _, one := range all {
		converted = append(converted, convert(one))
	}
	return converted
}

func sandboxOf(s *runtimev1.PodSandbox) sandbox {
	source, hasSource := s.GetAnnotations()[configSource]
	return sandbox{
		Pod: Pod{
			Sandbox: s.GetId(), Namespace: s.GetMetadata().GetNamespace(), Name: s.GetMetadata().GetName(),
			UID: s.GetMetadata().GetUid(), Static: hasSource && source != apiSource,
		},
		age:   age{uint64(s.GetMetadata().GetAttempt()), s.GetCreatedAt()},
		state: uint64(s.GetState()),
	}
}

func containerOf(c *runtimev1.Container) container {
	return container{
		Container: Container{
			ID: c.GetId(), State: ContainerState(c.GetState()),
		},
		sandbox: c.GetPodSandboxId(), name: c.GetMetadata().GetName(),
		age: age{uint64(c.GetMetadata().GetAttempt()), c.GetCreatedAt()},
	}
}

func networkOf(s *runtimev1.PodSandboxStatus) (mode uint64, addresses []string) {
	if address := s.GetNetwork().GetIp(); address != "" {
		addresses = append(addresses, address)
	}
	for _, additional := range s.GetNetwork().GetAdditionalIps() {
		if address := additional.GetIp(); address != "" {
			addresses = append(addresses, address)
		}
	}
	return uint64(s.GetLinux().GetNamespaces().GetOptions().GetNetwork()), addresses
}
