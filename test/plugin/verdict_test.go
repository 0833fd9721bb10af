package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/internal/testkit/clustertest"
	"github.com/application-grid/application-grid/test/suite"
)

// finding is one of any command.
type finding struct {
	Severity, Check, Message, Action, Node string
	Object                                 struct{ Kind, Namespace, Name string }
}

func (f finding) String() string {
	return fmt.Sprintf("%s %s %s/%s: %s", f.Severity, f.Check, f.Object.Kind, f.Object.Name, f.Message)
}

// answer is that of any command, as far as it is judged.
type answer struct {
	code    int
	Closed  bool
	Verdict json.RawMessage
	Nodes   verdict
	Sites   json.RawMessage
	Rows    []struct {
		Node, Verdict, Message, Address string
		Asked                           int
	}
	Findings []finding
	Services []struct {
		Name string
		Dark []string
	}
}

type verdict struct {
	EdgeNodes, Keeping int
	Failing, InNoSite  []string
	Unknown            map[string]int
}

func (a *answer) failures() []string { return told(a.Findings, "failure") }

// told are the findings of some severities.
func told(findings []finding, severities ...string) (found []string) {
	for _, f := range findings {
		if slices.Contains(severities, f.Severity) {
			found = append(found, f.String())
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// first is the seed of the first world.
var first = flag.Int("worlds.first", 0, "the seed of the first world")

// plugin is the program, and a kubeconfig for a server.
var program string

func TestMain(m *testing.M) {
	flag.Parse()
	root, err := suite.Root()
	dir := ""
	if err == nil {
		dir, err = os.MkdirTemp("", "plugin")
	}
	if err == nil {
		program = filepath.Join(dir, "kubectl-grid")
		build := exec.Command("go", "build", "-o", program, "./cmd/kubectl-grid")
		build.Dir, build.Stderr = root, os.Stderr
		err = build.Run()
	}
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "building kubectl-grid:", err)
	} else {
		code = m.Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	suite.Must(t, os.WriteFile(file, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '"+url+
		"'}}]\ncontexts: [{name: x, context: {cluster: c, namespace: shop}}]\ncurrent-context: x\n"), 0o600))
	return file
}

// ask runs a command of kubectl grid.
func ask(t *testing.T, url string, args ...string) *answer {
	t.Helper()
	cmd := exec.Command(program, append(args, "-o", "json", "--kubeconfig="+kubeconfig(t, url))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	a := &answer{}
	if errors.As(err, &exit) {
		a.code = exit.ExitCode()
	}
	if err := json.Unmarshal(out, a); err != nil {
		t.Fatalf("%q: %v\n%s%s", args, err, out, stderr.String())
	}
	return a
}

// TestVerdicts: of random clusters no command says that all is well where a connection would leave its site or find
// nothing that is there, none names a failure where none would, and all say the same.
func TestVerdicts(t *testing.T) {
	worlds := 120
	if testing.Short() {
		worlds = len(defects) // each is drawn once
	}
	ran, failed, wrong, proved, acted, drawn := 0, 0, 0, 0, 0, map[string]int{}
	for i := range worlds {
		seed := *first + i
		if failed == 5 {
			t.Fatal("the other worlds are left out")
		}
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			ran++
			r := rand.New(rand.NewPCG(uint64(seed), 41))
			w := newWorld(t, r, seed)
			for _, defect := range w.defects {
				drawn[defect]++
			}
			api := w.api()
			url := api.Serve()
			check, page := ask(t, url, "check"), dashboard(t, url)
			anything := w.away || w.unanswered || slices.Contains(w.defects, "k3s that asks a wrapper after a removal")
			w.nameless = w.judgeNames(check)
			anything = anything || w.nameless
			for _, s := range w.services {
				view, shown := ask(t, url, "view", "svc/"+s.Name), page(siteKey(s))
				bad := w.judgeView(s, view, check)
				w.judgeCells(s, shown, view)
				w.agree("the page of "+siteKey(s), shown.Findings, check)
				anything = anything || bad
				if bad {
					wrong++
				}
				if (seed%5 == 0 || s.Name == "sticky") && w.hasSites(s) && s.Name != "any" && !headless(s) {
					w.judgeProof(api, url, s, bad)
					proved++
				}
			}
			for _, s := range w.resolvers {
				if len(keysOf(s)) > 0 && keysOf(s)[0] != "*" {
					view := ask(t, url, "view", "svc/"+s.Name, "-n", s.Namespace)
					bad := w.judgeView(s, view, check)
					w.judgeCells(s, page(siteKey(s)), view)
					anything = anything || bad
				}
			}
			for _, m := range w.machines { // whatever Services there are
				anything = anything || m.edge() && m.broken() && !m.unseen()
			}
			if (check.code == 3) != anything {
				w.Errorf("check ends with %d, and something is wrong: %t\n%q", check.code, anything, check.failures())
			}
			preview, status := ask(t, url, "preview", "--key=zone"), ask(t, url, "status")
			if w.unanswered && status.code != 3 {
				w.Errorf("status ends with %d, and the controller has not answered a change of a grid", status.code)
			}
			w.judgeWords(check)
			w.judgePraise(check)
			w.judgeLost(check)
			w.agree("status", status.Findings, check)
			w.agree("preview", preview.Findings, check)
			w.judgeDark(preview)
			acted += w.judgeActions(r, check)
			if t.Failed() {
				w.describe()
			}
		})
		if !ok {
			failed++
		}
	}
	t.Logf("%d Services were not well, %d were proved, %d actions were carried out", wrong, proved, acted)
	if wrong < ran/4 || acted < ran/4 {
		t.Error("the worlds are too well")
	}
	for _, defect := range defects {
		t.Logf("%3d worlds have %s", drawn[defect.name], defect.name)
		if drawn[defect.name] == 0 && ran > len(defects) {
			t.Errorf("no world has %s", defect.name)
		}
	}
}

// judgeWords expects a warning of what no connection from a node shows, and no praise of what is not there.
func (w *world) judgeWords(check *answer) {
	w.Helper()
	for _, name := range w.warned {
		if !slices.ContainsFunc(check.Findings, func(f finding) bool { return f.Check == name && f.Severity == "warning" }) {
			w.Errorf("check has no warning of %s", name)
		}
	}
	for _, f := range check.Findings {
		if f.Severity == "ok" && strings.Contains(f.Message, "CoreDNS") && len(w.resolvers) == 0 {
			w.Errorf("there is no CoreDNS, and check says %s", f)
		}
		if m := unlabelAction.FindStringSubmatch(f.Action); m != nil && m[1] != edgeLabel {
			w.Errorf("%q removes a label that other programs may use", f.Action)
		}
	}
}

// judgeNames holds what check says of CoreDNS against where the queries of pods go, and reports whether on some node
// of a site none finds a CoreDNS.
func (w *world) judgeNames(check *answer) (nameless bool) {
	w.Helper()
	said := func(severity string, s *corev1.Service) bool {
		return slices.ContainsFunc(check.Findings, func(f finding) bool {
			return f.Severity == severity && f.Object.Kind == "Service" && f.Object.Name == s.Name
		})
	}
	for name, m := range w.machines {
		inSite := func(s *corev1.Service) bool {
			return !headless(s) && !left(s) && siteKey(s) != hostname && siteKey(s) != "*" && m.labels[siteKey(s)] != ""
		}
		i := slices.IndexFunc(w.services, inSite)
		cut := slices.ContainsFunc(slices.Collect(maps.Values(w.machines)), func(m *machine) bool { return m.cut })
		if i < 0 || !m.edge() || len(w.resolvers) == 0 || cut {
			continue
		}
		resolver, key := w.resolvers[0], siteKey(w.services[i])
		if m.cached {
			resolver = w.resolvers[1]
		}
		for _, o := range w.wellConnected(name, resolver) {
			leaves := slices.ContainsFunc(slices.Collect(maps.Keys(o.reached)), func(there string) bool {
				return w.machines[there].labels[key] != m.labels[key]
			})
			if lacks := len(o.reached) == 0 && o.something; lacks {
				if nameless = true; !said("failure", resolver) {
					w.Errorf("no name resolves on %s by %s, and check has no failure of it", name, resolver.Name)
				}
			} else if leaves && !said("failure", resolver) && !said("warning", resolver) {
				w.Errorf("queries from %s by %s leave the site, and check has no warning of it", name, resolver.Name)
			}
			for _, f := range check.Findings {
				if leaves && f.Severity == "ok" && strings.Contains(f.Message, "CoreDNS") {
					w.Errorf("queries from %s by %s leave the site, and check says %s", name, resolver.Name, f)
				}
			}
		}
	}
	return nameless
}

// named reports whether an answer has a failure of CoreDNS.
func named(a *answer) bool {
	return slices.ContainsFunc(a.Findings, func(f finding) bool { return f.Severity == "failure" && f.Check == "Names" })
}

var praise = regexp.MustCompile(`^each with the topologyKeys (.*) stays in its sites on (\d+)`)

// judgePraise expects that check says of no more nodes that they keep Services to their sites than do.
func (w *world) judgePraise(check *answer) {
	w.Helper()
	all := slices.Concat(w.services, w.resolvers)
	for _, f := range check.Findings {
		said := praise.FindStringSubmatch(f.Message)
		for _, s := range all {
			if f.Severity != "ok" || said == nil || said[1] != strings.Join(keysOf(s), " ") || headless(s) || left(s) {
				continue
			}
			keep := 0
			for name, m := range w.machines {
				if t := w.of(name, s); m.edge() && w.in(name, s) && !t.wrong && !t.hidden {
					keep++
				}
			}
			if said[2] > strconv.Itoa(keep) { // below ten
				w.Errorf("check says %s, and %d nodes keep Service %s", f, keep, s.Name)
			}
		}
		if f.Severity == "ok" && said != nil && !slices.ContainsFunc(all, func(s *corev1.Service) bool {
			return said[1] == strings.Join(keysOf(s), " ") && !headless(s) && !left(s)
		}) {
			w.Errorf("check says %s, and kube-proxy has no part in such a Service", f)
		}
	}
}

// TestVerdictsOnPorts: as TestVerdicts, of Services with several keys and ports, for each of which another key may
// decide.
func TestVerdictsOnPorts(t *testing.T) {
	worlds, wrong := 40, 0
	if testing.Short() {
		worlds = 12
	}
	for i := range worlds {
		seed := *first + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorldOfPorts(t, rand.New(rand.NewPCG(uint64(seed), 39)))
			url := w.api().Serve()
			check := ask(t, url, "check")
			for _, s := range w.services {
				if w.judgeView(s, ask(t, url, "view", "svc/"+s.Name), check) {
					wrong++
				}
			}
			if t.Failed() {
				w.describe()
			}
		})
	}
	if t.Logf("%d Services were not well", wrong); wrong < worlds/4 || wrong == worlds*len(severalShapes) {
		t.Error("the worlds are all alike")
	}
}

// judgeDark expects that no site would lose a Service that has an endpoint there.
func (w *world) judgeDark(preview *answer) {
	w.Helper()
	for _, s := range preview.Services {
		for _, p := range w.places[s.Name] {
			if slices.Contains(s.Dark, w.machines[p.node].labels["zone"]) && !p.terminating && p.without == "" {
				w.Errorf("preview: %s would have nothing of %s, and runs it on %s", s.Dark, s.Name, p.node)
			}
		}
	}
}

// judgeLost expects a failure of each node that has lost its site, if no label of it is left by which it may be of
// another fleet, and if connections from it find nothing that is there.
func (w *world) judgeLost(check *answer) {
	w.Helper()
	keys := []string{"zone", "pool"} // of the grids
	for _, s := range w.services {
		keys = append(keys, keysOf(s)...)
	}
	for name, m := range w.machines {
		if !m.lost || slices.ContainsFunc(keys, func(key string) bool { return key != hostname && m.labels[key] != "" }) {
			continue
		}
		finds := func(s *corev1.Service) bool {
			for _, o := range w.connect(name, s) {
				if len(o.reached) == 0 && o.something && w.hasSites(s) && siteKey(s) != hostname {
					return false
				}
			}
			return true
		}
		named := func(f finding) bool { return f.Severity == "failure" && f.Node == name }
		for _, s := range w.services {
			if !finds(s) && !slices.ContainsFunc(check.Findings, named) {
				w.Errorf("%s has lost its site, and reaches nothing of Service %s, and check has no failure of it", name, s.Name)
			}
		}
	}
}

func subset(of, all []string) bool {
	return !slices.ContainsFunc(of, func(one string) bool { return !slices.Contains(all, one) })
}

// agree expects that check has every failure and warning of another command.
func (w *world) agree(who string, findings []finding, check *answer) {
	w.Helper()
	said, all := told(findings, "failure", "warning"), told(check.Findings, "failure", "warning")
	if !subset(said, all) {
		w.Errorf("%s says %q, and check %q", who, said, all)
	}
}

// describe logs the world of a failure.
func (w *world) describe() {
	w.Logf("defects %q", w.defects)
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		w.Logf("%s: %+v", name, *w.machines[name])
	}
	for _, s := range w.services {
		w.Logf("Service %s %v: %+v", s.Name, keysOf(s), w.places[s.Name])
	}
}

// judgeView holds a view against the truth, and reports whether something is wrong that has to be a failure.
func (w *world) judgeView(s *corev1.Service, view, check *answer) (bad bool) {
	w.Helper()
	var v verdict
	suite.Must(w, json.Unmarshal(view.Verdict, &v))
	unknown := 0
	for _, n := range v.Unknown {
		unknown += n
	}
	hidden, last := 0, ""
	for name, m := range w.machines {
		t := w.of(name, s)
		if t.last && !t.hidden {
			last = name
		}
		switch {
		case t.hidden:
			hidden++
		case t.wrong:
			bad = true
			if view.code != 3 || view.Closed {
				w.Errorf("view %s ends with %d, closed %t, and %s is not well", s.Name, view.code, view.Closed, name)
			}
		case t.apart && m.edge() && !slices.Contains(v.InNoSite, name):
			w.Errorf("view %s does not say that %s is in none of its sites", s.Name, name)
		case t.warned && !slices.ContainsFunc(view.Findings, func(f finding) bool { return f.Check == "Reach" }):
			w.Errorf("view %s says nothing, and %s lacks an endpoint", s.Name, name)
		case m.lost && !slices.Contains(keysOf(s), "*"), m.frozen && !m.edge():
			bad = bad || view.code == 3 // it may be a failure, and need not
		}
	}
	if unknown < hidden {
		w.Errorf("view %s has %d unknown nodes, and %d are not well and cannot be seen", s.Name, unknown, hidden)
	}
	if left(s) && view.Closed {
		w.Errorf("view %s is closed, and kube-proxy leaves it alone", s.Name)
	}
	if left(s) && !slices.ContainsFunc(view.Findings, func(f finding) bool { return f.Severity == "warning" }) {
		w.Errorf("view %s has no warning, and kube-proxy leaves it alone", s.Name)
	}
	bad = bad || !w.hasSites(s) && !left(s)
	if last != "" && !bad && !slices.ContainsFunc(view.Findings, func(f finding) bool {
		return f.Check == "Reach" && f.Severity == "warning"
	}) {
		w.Errorf("view %s has no warning, and %s reaches only endpoints that are ending", s.Name, last)
	}
	if !bad && view.code == 3 && !w.away && !w.nameless {
		w.Errorf("view %s names a failure, and there is none: %q", s.Name, view.failures())
	}
	w.agree("view "+s.Name, view.Findings, check)
	return bad
}

// hasSites reports whether a node has one of a Service's keys.
func (w *world) hasSites(s *corev1.Service) bool {
	for _, m := range w.machines {
		if slices.ContainsFunc(keysOf(s), func(key string) bool { return key == "*" || m.labels[key] != "" }) {
			return true
		}
	}
	return false
}

// asked are the nodes whose endpoints the connections of one client on a node reach. Which endpoint a client is kept at
// is chance: it is one of the node's own site if there is one, which hides the others.
func (w *world) asked(name string, s *corev1.Service, o outcome) []string {
	nodes := slices.Sorted(maps.Keys(o.reached))
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || len(nodes) == 0 {
		return nodes
	}
	own := slices.IndexFunc(nodes, func(there string) bool { return !w.foreign(name, s, there) })
	return nodes[max(own, 0):][:1]
}

// foreign reports whether an endpoint on another node is none that a node may reach of a Service.
func (w *world) foreign(name string, s *corev1.Service, there string) bool {
	return !slices.Contains(keysOf(s), "*") && !slices.ContainsFunc(keysOf(s), func(key string) bool {
		a, ok := w.machines[name].labels[key]
		return ok && a == w.machines[there].labels[key]
	})
}

// wellConnected says what connections from a node would do if its kube-proxy asked its wrapper: where keys only prefer
// endpoints, one that is not preferred is foreign, too, and nothing but a connection shows it.
func (w *world) wellConnected(name string, s *corev1.Service) map[string]outcome {
	m := w.machines[name]
	well := *m
	well.past, well.plane, well.as = false, "", ""
	w.machines[name] = &well
	defer func() { w.machines[name] = m }()
	return w.connect(name, s)
}

// judgeProof runs prove, whose pods connect as kube-proxy would.
func (w *world) judgeProof(api *clustertest.API, url string, s *corev1.Service, bad bool) {
	w.Helper()
	api.Created = func(pod *unstructured.Unstructured) {
		node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
		target := containers[0].(map[string]any)["args"].([]any)[1].(string)
		result := map[string]any{"asked": 20}
		o := w.connect(node, s)[target]
		reached, asked := map[string]int{}, w.asked(node, s, o)
		for _, on := range asked {
			reached[o.reached[on]] = 20 / len(asked)
		}
		switch result["reached"] = reached; {
		case left(s):
			result["untranslated"] = 20
		case len(reached) == 0:
			result["nobody"] = 20
		}
		message, err := json.Marshal(result)
		suite.Must(w, err)
		pod.SetName("prove-" + node + regexp.MustCompile(`[^a-z0-9]`).ReplaceAllString(target, "-"))
		pod.Object["status"] = map[string]any{"containerStatuses": []any{map[string]any{"name": "probe",
			"state": map[string]any{"terminated": map[string]any{"message": string(message)}}}}}
	}
	proof := ask(w.T, url, "prove", "svc/"+s.Name, "--all-nodes", "--image=x")
	leaks, unproved, rows := false, false, map[string]int{}
	for _, row := range proof.Rows {
		unproved = unproved || row.Verdict == "Unproved"
		if row.Node == "" { // none of its nodes is heard
			continue
		}
		rows[row.Node]++
		if row.Asked == 0 {
			w.Errorf("prove %s did not connect: %+v", s.Name, row)
		}
		foreign := func(there string) bool { return w.foreign(row.Node, s, there) }
		o, preferred := w.connect(row.Node, s)[row.Address], w.wellConnected(row.Node, s)[row.Address].reached
		leaks = leaks || slices.ContainsFunc(w.asked(row.Node, s, o), func(there string) bool {
			return foreign(there) || preferred[there] == ""
		})
		if slices.ContainsFunc(slices.Collect(maps.Keys(o.reached)), foreign) && row.Verdict == "Closed" {
			w.Errorf("prove %s says %+v, and a connection leaves the site", s.Name, row)
		}
	}
	if proof.code != 3 && (proof.code == 1) != unproved {
		w.Errorf("prove %s ends with %d, and %+v", s.Name, proof.code, proof.Rows)
	}
	for name, asked := range rows {
		if asked != len(s.Spec.ClusterIPs) {
			w.Errorf("prove %s asks %d addresses from %s, and the Service has %s", s.Name, asked, name, s.Spec.ClusterIPs)
		}
	}
	if (proof.code == 3) != (leaks || bad || w.away || w.nameless && named(proof)) {
		w.Errorf("prove %s ends with %d, a connection leaves: %t, something is wrong: %t\n%q %+v", s.Name, proof.code, leaks, bad,
			proof.failures(), proof.Rows)
	}
}

var (
	labelAction    = regexp.MustCompile(`kubectl label node (\S+) (?:--overwrite )?(\S+)=(\w+)`)
	unlabelAction  = regexp.MustCompile(`kubectl label nodes? .*?([a-z0-9./-]*[a-z0-9])-(?:[^a-z0-9]|$)`)
	annotateAction = regexp.MustCompile(`kubectl annotate --overwrite service -n (?:shop|kube-system) (\S+) 'topologyKeys=(\[[^']*\])'`)
	patchAction    = regexp.MustCompile(`kubectl patch service -n shop (\S+) -p '\{"spec":\{"internalTrafficPolicy":"Cluster"\}\}'`)
)

// judgeActions carries out what is printed for one failure after the other, each on a cluster of its own:
// the failure is
// gone, and there is no other one.
func (w *world) judgeActions(_ *rand.Rand, check *answer) (acted int) {
	w.Helper()
	for _, f := range check.Findings {
		if f.Severity != "failure" || acted == 2 {
			continue
		}
		undo := w.act(f)
		if undo == nil {
			continue
		}
		acted++
		after := ask(w.T, w.api().Serve(), "check")
		for _, one := range after.failures() {
			switch {
			case one == f.String():
				w.Errorf("after %q there is still\n%s", f.Action, one)
			case strings.HasPrefix(one, "failure Names") && labelAction.MatchString(f.Action):
				// The node was in no site, and names did not resolve there.
			case !slices.Contains(check.failures(), one) && !similar(one, check.failures()):
				w.Errorf("after %q there is a new\n%s", f.Action, one)
			}
		}
		undo()
	}
	return acted
}

// similar reports whether a failure is one of those, but for numbers and names of sites in it.
func similar(one string, all []string) bool {
	about, _, _ := strings.Cut(one, ": ")
	return slices.ContainsFunc(all, func(other string) bool { return strings.HasPrefix(other, about+": ") })
}

// act carries out the last command of an action; it returns nil if there is none that it knows.
func (w *world) act(f finding) (undo func()) {
	service := func(name string) *corev1.Service {
		all := slices.Concat(w.services, w.resolvers)
		return all[slices.IndexFunc(all, func(s *corev1.Service) bool { return s.Name == name })]
	}
	if m := labelAction.FindStringSubmatch(f.Action); m != nil && w.machines[m[1]] != nil {
		labels, places := w.machines[m[1]].labels, w.places["local"]
		before := maps.Clone(labels)
		if len(places) > 0 { // a DaemonSetGrid runs its pods
			w.places["local"] = append(slices.Clone(places), place{node: m[1]})
		}
		if labels[m[2]] = m[3]; m[3] == "SITE" {
			labels[m[2]] = "a"
			for _, name := range slices.Sorted(maps.Keys(w.machines)) { // a site that there is
				if other := w.machines[name]; other.edge() && name != m[1] && other.labels[m[2]] != "" {
					labels[m[2]] = other.labels[m[2]]
				}
			}
		}
		return func() { w.machines[m[1]].labels, w.places["local"] = before, places }
	}
	if m := annotateAction.FindStringSubmatch(f.Action); m != nil && !strings.Contains(m[2], "KEY") {
		s := service(m[1])
		before := s.Annotations
		had := keysOf(s)
		if s.Annotations = map[string]string{"topologyKeys": m[2]}; !subset(had, keysOf(s)) {
			w.Errorf("%q takes keys of %s away", f.Action, had)
		}
		return func() { s.Annotations = before }
	}
	if m := patchAction.FindStringSubmatch(f.Action); m != nil {
		s := service(m[1])
		before := s.Spec.InternalTrafficPolicy
		s.Spec.InternalTrafficPolicy = nil
		return func() { s.Spec.InternalTrafficPolicy = before }
	}
	return nil
}
