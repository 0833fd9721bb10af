package columns

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	endpointSliceColumns = []metav1.TableColumnDefinition{
		nameColumn(),
		text("AddressType", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
		text("Ports", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
		text("Endpoints", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
		ageColumn(),
	}
	endpointsColumns = []metav1.TableColumnDefinition{
		nameColumn(),
		text("Endpoints", corev1.Endpoints{}.SwaggerDoc()["subsets"]),
		ageColumn(),
	}
)

func endpointSliceCells(s *discoveryv1.EndpointSlice, now time.Time) []any {
	var ports, addresses abridged
	for _, p := range s.Ports {
		switch {
		case p.Port != nil:
			ports.add(strconv.Itoa(int(*p.Port)))
		case p.Name != nil:
			ports.add(*p.Name)
		default:
			ports.add("*")
		}
	}
	for _, e := range s.Endpoints {
		for _, address := range e.Addresses {
			addresses.add(address)
		}
	}
	return []any{s.Name, string(s.AddressType), ports.or(unset), addresses.or(unset), age(s.CreationTimestamp, now)}
}

// endpointsCells shows the ready addresses, each with all its ports.
func endpointsCells(e *corev1.Endpoints, now time.Time) []any {
	var addresses abridged
	for _, subset := range e.Subsets {
		if len(subset.Ports) == 0 {
			for _, a := range subset.Addresses {
				addresses.add(a.IP)
			}
		}
		for _, p := range subset.Ports {
			for _, a := range subset.Addresses {
				addresses.add(net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	nothing := none
	if len(e.Subsets) > 0 {
		nothing = "" // there are addresses, but none is ready
	}
	return []any{e.Name, addresses.or(nothing), age(e.CreationTimestamp, now)}
}

// abridged is a list whose first few entries are shown in a cell.
type abridged struct {
	shown []string
	more  int
}

const mostShown = 3

func (a *abridged) add(entry string) {
	if len(a.shown) == mostShown {
		a.more++
		return
	}
	a.shown = append(a.shown, entry)
}

// or returns the list as a cell shows it, or nothing if it is empty.
func (a *abridged) or(nothing string) string {
	list := strings.Join(a.shown, ",")
	switch {
	case a.more > 0:
		return fmt.Sprintf("%s + %d more...", list, a.more)
	case list == "":
		return nothing
	default:
		return list
	}
}
