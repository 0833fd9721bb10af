package plugin

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/coredns/coredns/plugin/kubernetes/object"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/test/suite"
)

// outcome is what a connection to a port of a Service does.
type outcome struct {
	// reached are the nodes of the endpoints that kube-proxy may send it to, with their addresses.
	reached map[string]string
	// something is that an endpoint of the port is ready somewhere, ending that one serves while it ends, heard that
	// the API server knows of a ready one, and last that only ones that are ending are reached.
	something, ending, heard, last bool
}

// shown are those of the slices that a node's kube-proxy gets: the wrapper's view, or all.
func (w *world) shown(name string, s *corev1.Service, of []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	w.Helper()
	m := w.machines[name]
	if !m.edge() || m.bypassed() {
		return of
	}
	store := storagetest.New(storagetest.Options{NodeName: cmp.Or(m.as, name), KeepKubernetesEndpoint: true})
	var nodes, slices []*wire.Object
	for other, m := range w.machines {
		nodes = append(nodes, wiretest.NodeWith(other, m.labels))
	}
	for _, slice := range of {
		slices = append(slices, wiretest.Object(slice))
	}
	store.NodeLabels().Replace(nodes)
	store.Services().Replace([]*wire.Object{wiretest.Object(s)})
	store.EndpointSlices().Replace(slices)
	objects, _, err := store.History.List(served.EndpointSlices, s.Namespace, 0)
	suite.Must(w, err)
	var shown []*discoveryv1.EndpointSlice
	for _, object := range objects {
		typed, err := object.Decode()
		suite.Must(w, err)
		shown = append(shown, typed.(*discoveryv1.EndpointSlice))
	}
	return shown
}

// connect says what connections from a node to each port of a Service do, by kube-proxy's own code on what it is shown.
// They are by the address that is asked. A node whose link is down has what it was last shown.
func (w *world) connect(name string, s *corev1.Service) map[string]outcome {
	w.Helper()
	if w.machines[name].cut {
		return w.connectBy(name, s, w.slicesOf(s))
	}
	return w.connectBy(name, s, w.reported(s))
}

func (w *world) connectBy(name string, s *corev1.Service, of []*discoveryv1.EndpointSlice) map[string]outcome {
	w.Helper()
	outcomes := map[string]outcome{}
	if headless(s) || left(s) {
		return outcomes // kube-proxy does not ask for it
	}
	shown := w.shown(name, s, of)
	families := s.Spec.IPFamilies
	if families == nil {
		families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	for i, family := range families {
		services := proxy.NewServiceChangeTracker(family, nil, nil)
		endpoints := func(slices []*discoveryv1.EndpointSlice) proxy.EndpointsMap {
			tracker := proxy.NewEndpointsChangeTracker(family, name, nil, nil)
			for _, slice := range slices {
				tracker.EndpointSliceUpdate(slice, false)
			}
			known := proxy.EndpointsMap{}
			known.Update(tracker)
			return known
		}
		typed := s.DeepCopy()
		typed.Spec.IPFamilies = families
		services.Update(nil, typed)
		ports := proxy.ServicePortMap{}
		ports.Update(services)
		on := map[string]string{}
		for _, slice := range w.slicesOf(s) {
			on[slice.Endpoints[0].Addresses[0]] = *slice.Endpoints[0].NodeName
		}
		here, everywhere, known := endpoints(shown), endpoints(w.slicesOf(s)), endpoints(w.reported(s))
		for port, info := range ports {
			o := outcome{reached: map[string]string{}}
			_, _, reachable, _ := proxy.CategorizeEndpoints(here[port], info, name, w.machines[name].labels)
			for _, e := range reachable {
				host, _, err := net.SplitHostPort(e.String())
				suite.Must(w, err)
				o.reached[on[host]] = e.String()
			}
			o.last = len(reachable) > 0 && !slices.ContainsFunc(reachable, func(e proxy.Endpoint) bool {
				return !e.IsTerminating()
			})
			for _, e := range everywhere[port] {
				o.something = o.something || e.IsReady()
				o.ending = o.ending || e.IsServing() && e.IsTerminating()
			}
			o.heard = slices.ContainsFunc(known[port], func(e proxy.Endpoint) bool { return e.IsReady() })
			outcomes[net.JoinHostPort(s.Spec.ClusterIPs[i], strconv.Itoa(info.Port()))] = o
		}
	}
	return outcomes
}

// truth is what is wrong on a node with a Service.
type truth struct {
	// wrong: connections leave their site, or find nothing that is there, in a way that has to be a failure.
	wrong bool
	// hidden is that nobody can see but on the node whether it is well, and apart that the node is in no site of the
	// Service.
	hidden, apart bool
	// warned is that the node lacks an endpoint of its own where a Service has no sites, or that only
	// endpoints that are
	// ending are left.
	warned bool
	// last is that connections to some port reach only endpoints that are ending.
	last bool
}

func headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// left reports whether a Service is left to another program than kube-proxy, which selects those without the label.
func left(s *corev1.Service) bool {
	_, labelled := s.Labels[apis.LabelServiceProxyName]
	return labelled && !headless(s)
}

// resolved are the nodes of the pods to which a name leads, by what CoreDNS makes of some slices.
func (w *world) resolved(of []*discoveryv1.EndpointSlice) map[string]bool {
	w.Helper()
	nodes := map[string]bool{}
	for _, slice := range of {
		made, err := object.EndpointSliceToEndpoints(slice.DeepCopy())
		suite.Must(w, err)
		for _, subset := range made.(*object.Endpoints).Subsets {
			for _, address := range subset.Addresses {
				nodes[address.NodeName] = true
			}
		}
	}
	return nodes
}

// ofNames is the truth of a headless Service on a node. The CoreDNS that answers asks the API server or the node's
// wrapper, and nobody but on a node can see which. The rest of the node has no part in it.
func (w *world) ofNames(name string, s *corev1.Service) truth {
	w.Helper()
	m, keys := w.machines[name], keysOf(s)
	if !m.edge() || !w.in(name, s) {
		stray := m.edge() && !w.in(name, s) && slices.ContainsFunc(w.places[s.Name], func(p place) bool {
			return p.node == name
		})
		return truth{apart: true, wrong: stray}
	}
	now := w.reported(s)
	if m.cut {
		now = w.slicesOf(s)
	}
	kept := *m
	kept.past, kept.plane, kept.as, w.machines[name] = false, "", "", &kept
	own, linked := w.resolved(w.shown(name, s, now)), w.resolved(w.shown(name, s, w.slicesOf(s)))
	w.machines[name] = m
	all, heard := w.resolved(w.slicesOf(s)), w.resolved(w.reported(s))
	lacks := len(own) == 0 && len(all) > 0
	surely := lacks && !m.cut && len(linked) == 0 && len(heard) > 0
	leaves := !slices.Contains(keys, "*") && !maps.Equal(own, all)
	return truth{wrong: surely, hidden: !surely && (leaves || lacks)}
}

// in reports whether a node is in a site of a Service, or may reach all.
func (w *world) in(name string, s *corev1.Service) bool {
	return slices.ContainsFunc(keysOf(s), func(key string) bool {
		return key == "*" || w.machines[name].labels[key] != ""
	})
}

// broken reports whether a node does not keep Services to its site, or gets no changes of them. Of a silent node the
// API server shows how its programs are set up, and not how they are.
func (m *machine) broken() bool {
	return m.past || m.plane == ebpf || m.plane == cilium || m.frozen && (!m.unready || !m.cut) || m.as != ""
}

// unseen reports whether the node itself starts its programs, so that the API server does not show whom they ask.
func (m *machine) unseen() bool { return m.kind == "systemd" || m.kind == "static" }

// of is the truth on a node.
func (w *world) of(name string, s *corev1.Service) truth {
	w.Helper()
	m, keys := w.machines[name], keysOf(s)
	if keys[0] == "*" {
		return truth{} // it is to reach every endpoint
	}
	if headless(s) {
		return w.ofNames(name, s)
	}
	if left(s) { // nothing of kube-proxy's, so the program may do as it likes
		return truth{hidden: m.edge() && w.in(name, s), apart: !m.edge() || !w.in(name, s)}
	}
	strict := !slices.Contains(keys, "*")
	shares := func(key, other string) bool {
		a, ok := m.labels[key]
		b, also := w.machines[other].labels[key]
		return ok && also && a == b
	}
	var t truth
	if !m.edge() {
		// It reaches every endpoint. That is wrong if it is taken for one of a site.
		site := slices.IndexFunc(keys, func(key string) bool { return key != hostname && key != "*" })
		for other, edge := range w.machines {
			t.wrong = t.wrong || site >= 0 && edge.edge() && shares(keys[site], other)
		}
		t.apart = !t.wrong
		return t
	}
	unseen := m.past && m.unseen()
	if unseen { // whether its wrapper has something to show is in sight of everybody
		kept := *m
		kept.past, w.machines[name] = false, &kept
		shown := w.of(name, s)
		if w.machines[name] = m; shown.wrong {
			return shown
		}
	}
	if m.plane == antrea { // whether it asks its wrapper is in nobody's sight
		kept := *m
		kept.plane, w.machines[name] = "", &kept
		shown := w.of(name, s)
		shown.hidden = shown.hidden || w.in(name, s) && !shown.wrong
		w.machines[name] = m
		return shown
	}
	in := w.in(name, s)
	broken := m.broken()
	silent, linked := in && m.cut, w.connectBy(name, s, w.slicesOf(s))
	for address, o := range w.connect(name, s) {
		for there := range o.reached {
			t.wrong = t.wrong || strict && in && !slices.ContainsFunc(keys, func(key string) bool {
				return shares(key, there)
			})
		}
		lacks := in && len(o.reached) == 0 && o.something
		// An endpoint on a silent node may serve, and one elsewhere may not. Of a silent node's site the API server may
		// have forgotten one.
		if lacks && (m.cut || len(linked[address].reached) > 0 || !o.heard) {
			lacks, silent = false, true
		}
		t.wrong = t.wrong || lacks && !slices.Equal(keys, []string{hostname})
		t.last = t.last || in && o.last
		t.warned = t.warned || lacks || len(o.reached) == 0 && o.ending
	}
	t.wrong = t.wrong || broken && in
	t.hidden = t.wrong && unseen || silent && !t.wrong
	if !in {
		// It reaches nothing, as nodes of another fleet. If a pod of the Service runs there it was meant to be in a
		// site.
		t.apart = true
		t.wrong = t.wrong || slices.ContainsFunc(w.places[s.Name], func(p place) bool { return p.node == name })
	}
	return t
}
