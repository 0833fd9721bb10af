package plugin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/suite"
)

type word struct{ Word, Severity string }

// overview is the page of kubectl grid dashboard for one label key.
type overview struct {
	Diagnosed bool
	Findings  []finding
	Matrix    struct {
		Words []word
		Sites []struct{ Name, Services string }
	}
	Services []struct {
		Name, Severity string
		Healthy        bool
	}
}

// cells are the words of a Service by site.
func (o *overview) cells(service string) map[string]word {
	cells := map[string]word{}
	for i, s := range o.Services {
		for _, site := range o.Matrix.Sites {
			if s.Name == service {
				cells[site.Name] = o.Matrix.Words[site.Services[i]-'a']
			}
		}
	}
	return cells
}

// dashboard starts the page, and returns a function that asks it.
func dashboard(t *testing.T, url string) func(key string) *overview {
	t.Helper()
	cmd := exec.Command(program, "dashboard", "--kubeconfig="+kubeconfig(t, url))
	out, err := cmd.StdoutPipe()
	suite.Must(t, err)
	suite.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // Wait says how it ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("the dashboard ended with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	suite.Must(t, err)
	base, token, _ := strings.Cut(strings.TrimSpace(line), "/#token=")
	return func(key string) *overview {
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/api/overview?key="+key, nil)
			suite.Must(t, err)
			r.Header.Set("Authorization", "Bearer "+token)
			response, err := http.DefaultClient.Do(r)
			suite.Must(t, err)
			o := &overview{}
			err = json.NewDecoder(response.Body).Decode(o)
			response.Body.Close()
			if err == nil && response.StatusCode == http.StatusOK && o.Diagnosed {
				return o
			}
		}
		t.Fatal("the page is not complete")
		return nil
	}
}

// siteKey is the key of a Service whose values are the rows of its matrix.
func siteKey(s *corev1.Service) string {
	keys := keysOf(s)
	if i := slices.IndexFunc(keys, func(key string) bool { return key != hostname && key != "*" }); i >= 0 {
		return keys[i]
	}
	return keys[0]
}

// judgeCells holds the matrix against the truth, and against the view.
func (w *world) judgeCells(s *corev1.Service, o *overview, view *answer) {
	w.Helper()
	key, cells := siteKey(s), o.cells(s.Name)
	var sites []struct {
		Nodes   []string
		Verdict word
	}
	suite.Must(w, json.Unmarshal(view.Sites, &sites))
	for site, cell := range cells {
		var in []string
		for name, m := range w.machines {
			if m.labels[key] == site {
				in = append(in, name)
			}
		}
		slices.Sort(in)
		wrong, hidden, about := false, false, fmt.Sprintf("%s=%s of Service %s is %q (%s)", key, site, s.Name, cell.Word, cell.Severity)
		for _, name := range in {
			t := w.of(name, s)
			wrong, hidden = wrong || t.wrong && !t.hidden, hidden || t.hidden
			if m := w.machines[name]; m.edge() && (cell.Word == "own" || cell.Word == "fallback") {
				if w.judgeWord(name, s, cell.Word, about); w.away {
					w.Errorf("%s, and the wrappers have heard nothing since their hub went away", about)
				}
			}
		}
		if wrong != (cell.Severity == "failure") {
			w.Errorf("%s, and something is wrong on %q: %t", about, in, wrong)
		}
		if hidden && cell.Severity != "failure" && cell.Severity != "unknown" && cell.Word != "none" && cell.Word != "terminating" {
			w.Errorf("%s, and nobody can see it", about)
		}
		said := false
		for _, of := range sites {
			here := slices.ContainsFunc(of.Nodes, func(node string) bool { return slices.Contains(in, node) })
			said = said || of.Verdict == cell && here
		}
		if len(in) > 0 && !said {
			w.Errorf("%s, and view says %+v", about, sites)
		}
	}
	for _, f := range view.Findings {
		if f.Check == "Reach" && !slices.Contains(o.Findings, f) {
			w.Errorf("the page of %s does not say %s", key, f)
		}
	}
	i := slices.IndexFunc(o.Services, func(one struct {
		Name, Severity string
		Healthy        bool
	}) bool {
		return one.Name == s.Name
	})
	if healthy := o.Services[i].Healthy; healthy != (view.code != 3) {
		w.Errorf("on the page Service %s is healthy: %t, and view ends with %d", s.Name, healthy, view.code)
	}
}

// judgeWord expects that connections from a node find an endpoint on each port, of its own site if that is the word.
func (w *world) judgeWord(name string, s *corev1.Service, word, about string) {
	w.Helper()
	keys, own := keysOf(s), []string{siteKey(s), hostname}
	for address, outcome := range w.connect(name, s) {
		if len(outcome.reached) == 0 && outcome.something {
			w.Errorf("%s, and %s finds nothing at %s", about, name, address)
		}
		for there := range outcome.reached {
			shares := slices.ContainsFunc(own, func(key string) bool {
				a, ok := w.machines[name].labels[key]
				return ok && slices.Contains(keys, key) && a == w.machines[there].labels[key]
			})
			if word == "own" && !shares {
				w.Errorf("%s, and %s reaches %s", about, name, there)
			}
		}
	}
}
