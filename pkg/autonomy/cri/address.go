package cri

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Auto is the address for the first socket of wellKnown whose runtime runs pods.
const Auto = "auto"

// scheme begins every other address.
const scheme = "unix://"

// wellKnown are the paths of runtimes' sockets: those of containerd, CRI-O, k3s and RKE2, MicroK8s, and cri-dockerd.
var wellKnown = []string{
	"/run/containerd/containerd.sock",
	"/run/crio/crio.sock",
	"/run/k3s/containerd/containerd.sock",
	"/var/snap/microk8s/common/run/containerd.sock",
	"/run/cri-dockerd.sock",
}

var errNoSocket = errors.New("no container runtime has a socket at any of " + strings.Join(wellKnown, ", "))

// paths returns the paths of the sockets to try for an address.
func paths(address string) ([]string, error) {
	if address == Auto {
		return wellKnown, nil
	}
	socket, found := strings.CutPrefix(address, scheme)
	if !found || !path.IsAbs(socket) {
		return nil, fmt.Errorf("%q is neither %s nor the address of a socket, such as %s%s",
			address, Auto, scheme, wellKnown[0])
	}
	return []string{socket}, nil
}
