package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/test/suite"
)

// readResources are those that commands read.
var readResources = []string{"nodes", "pods", "configmaps", "daemonsets", "deployments", "statefulsets", "services",
	"endpointslices", "apiservices", "customresourcedefinitions", "mutatingadmissionpolicies", "deploymentgrids",
	"servicegrids", "ciliumnodeconfigs", "felixconfigurations", "leases"}

// forbidden draws what somebody may not read.
func forbidden(r *rand.Rand) (name string, is func(resource, namespace string) bool) {
	switch r.IntN(4) {
	case 0:
		one := readResources[r.IntN(len(readResources))]
		return one, func(resource, _ string) bool { return resource == one }
	case 1:
		var some []string
		for _, one := range readResources {
			if r.IntN(4) == 0 {
				some = append(some, one)
			}
		}
		return fmt.Sprint(some), func(resource, _ string) bool { return slices.Contains(some, resource) }
	case 2:
		return "all but namespace shop", func(_, namespace string) bool { return namespace != "shop" }
	}
	return "all namespaces at once", func(resource, namespace string) bool {
		clusterWide := []string{"nodes", "apiservices", "customresourcedefinitions", "mutatingadmissionpolicies",
			"mutatingadmissionpolicybindings", "felixconfigurations"}
		return namespace == "" && !slices.Contains(clusterWide, resource)
	}
}

// partly runs a command for somebody who may not read all. It answers nothing if the command says why it cannot.
func partly(t *testing.T, url string, args ...string) (a *answer, said string) {
	t.Helper()
	cmd := exec.Command(program, append(args, "-o", "json", "--kubeconfig="+kubeconfig(t, url))...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the exit code says it
	a = &answer{code: cmd.ProcessState.ExitCode()}
	if stdout.Len() == 0 {
		if a.code != 1 || !strings.HasPrefix(stderr.String(), "error: ") && !strings.Contains(stderr.String(), "\nerror: ") {
			t.Errorf("%q ends with %d, and says %q", args, a.code, stderr.String())
		}
		return nil, stderr.String()
	}
	suite.Must(t, json.Unmarshal(stdout.Bytes(), a))
	return a, stderr.String()
}

// about is what a finding is about, without its numbers and names.
func (f finding) about() string {
	return fmt.Sprintf("%s %s %s/%s", f.Severity, f.Check, f.Object.Kind, f.Object.Name)
}

// TestPartialRights: whoever may not read all is told so, blames nothing that whoever may read it does not blame, and
// hears of nothing that it is well if it is not. What cannot be read is named once.
func TestPartialRights(t *testing.T) {
	worlds, told := 120, map[string]int{}
	if testing.Short() {
		worlds = 25
	}
	for i := range worlds {
		seed := *first + i
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 43))
			w := newWorld(t, r, seed)
			api := w.api()
			url := api.Serve()
			full := ask(t, url, "check")
			views := map[string]*answer{}
			for _, s := range w.services {
				views[s.Name] = ask(t, url, "view", "svc/"+s.Name)
			}
			kinds, is := forbidden(r)
			told[kinds]++
			api.Change(func() { api.Forbidden = is })
			w.partly(full, "check", url, "check")
			for _, s := range w.services {
				w.partlyOf(views[s.Name], w.partly(full, "view "+s.Name, url, "view", "svc/"+s.Name))
			}
			w.partly(full, "status", url, "status")
			w.partly(full, "preview", url, "preview", "--key=zone")
			w.partlyShown(full, url)
			if t.Failed() {
				t.Logf("forbidden: %s", kinds)
				w.describe()
			}
		})
	}
}

// partly judges the answer of a command to somebody who may not read all.
func (w *world) partly(full *answer, name, url string, args ...string) *answer {
	w.Helper()
	a, said := partly(w.T, url, args...)
	if a == nil {
		return nil
	}
	named := map[string]int{}
	for _, f := range a.Findings {
		if f.Check == "Read" {
			named[f.about()]++
		}
		if named[f.about()] > 1 {
			w.Errorf("%s names %s %d times", name, f.about(), named[f.about()])
		}
	}
	for plural, kind := range map[string]string{"nodes": "Node", "pods": "Pod", "Deployments": "Deployment",
		"Services": "Service", "DaemonSets": "DaemonSet"} {
		times := strings.Count(said, "as "+plural+" could not be read")
		if kind != "Node" {
			times = strings.Count(said, plural+" exist is left out") + strings.Count(said, "why "+plural+" are not ready")
		}
		if times+named["unknown Read "+kind+"/"] > 1 {
			w.Errorf("%s names %s twice: %s %v", name, plural, said, named)
		}
	}
	if len(named) > 0 && a.code == 0 && !strings.Contains(name, "view any") { // which is to reach all
		w.Errorf("%s ends with 0, and could not read all: %v", name, named)
	}
	w.names(name, a)
	w.blames(full, name, a.Findings)
	return a
}

// names expects that an answer names everything that check names, but for what only check reads.
func (w *world) names(name string, a *answer) {
	w.Helper()
	if name == "check" {
		w.unread = a
		return
	}
	for _, f := range w.unread.Findings {
		own := f.Object.Kind != "EndpointSlice" && f.Object.Kind != "ConfigMap" && f.Object.Kind != "Secret"
		if strings.HasPrefix(name, "view any") || name == "status" || f.Check != "Read" || !own {
			continue
		}
		if !slices.ContainsFunc(a.Findings, func(other finding) bool { return other.about() == f.about() }) {
			w.Errorf("%s does not say that %s could not be read", name, f.about())
		}
	}
}

// blames expects that somebody who may read all has the same failures, and no other ones where this one praises.
func (w *world) blames(full *answer, name string, findings []finding) {
	w.Helper()
	for _, f := range findings {
		if f.Severity == "failure" && !slices.ContainsFunc(full.Findings, func(other finding) bool {
			return other.about() == f.about()
		}) {
			w.Errorf("%s blames by what it could not read: %s", name, f)
		}
		if f.Severity == "ok" && slices.ContainsFunc(full.Findings, func(other finding) bool {
			return other.Check == f.Check && other.Severity == "failure"
		}) && !slices.ContainsFunc(full.Findings, func(other finding) bool {
			return other.Check == f.Check && other.Severity == "ok"
		}) {
			w.Errorf("%s praises by what it could not read: %s", name, f)
		}
	}
}

// partlyOf expects that a view says of no more nodes that all is well than one that sees all.
func (w *world) partlyOf(full, a *answer) {
	w.Helper()
	if a == nil {
		return
	}
	var seen, said verdict
	suite.Must(w, json.Unmarshal(full.Verdict, &seen))
	suite.Must(w, json.Unmarshal(a.Verdict, &said))
	if said.Keeping > seen.Keeping || a.Closed && !full.Closed || a.code == 0 && full.code != 0 {
		w.Errorf("a view says that all is well on %d nodes, closed %t, and one that sees all on %d, closed %t", said.Keeping,
			a.Closed, seen.Keeping, full.Closed)
	}
}

// partlyShown judges the page.
func (w *world) partlyShown(full *answer, url string) {
	w.Helper()
	page, all := dashboard(w.T, url)("zone"), dashboard(w.T, w.api().Serve())
	w.blames(full, "the page", page.Findings)
	for _, s := range w.services {
		whole := all(siteKey(s)).cells(s.Name)
		for site, cell := range dashboard(w.T, url)(siteKey(s)).cells(s.Name) {
			is, known := whole[site]
			if known && cell.Severity == "failure" && is.Severity != "failure" {
				w.Errorf("the page blames %s in %s: %v, and it is %v", s.Name, site, cell, is)
			}
			if known && (cell.Word == "own" || cell.Word == "fallback") && is != cell {
				w.Errorf("the page praises %s in %s: %v, and it is %v", s.Name, site, cell, is)
			}
		}
	}
}
