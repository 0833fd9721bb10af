// Package verdict has all commands of kubectl grid judge a Service of a running cluster, and compares what they say
// with connections from its nodes. Only tests import it.
package verdict

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// Judge asks the commands about Services of the namespace default.
type Judge struct {
	*suite.Test

	// Plugin is a command of kubectl grid, as an administrator.
	Plugin func(args ...string) *exec.Cmd
	// Node is a node of the cluster.
	Node func(name string) workload.Source
	// Key is the label key of the sites.
	Key string

	url, token string // of the dashboard
}

// Unknown is the cell of a site if nothing is known of what its nodes show: its word, and its severity.
const Unknown = "unknown" + " unknown"

// Case is a Service of a ServiceGrid, and what is to be seen of it.
type Case struct {
	Name    string
	Service *corev1.Service
	// Grid is the name of its ServiceGrid.
	Grid string
	// Reach is whom each node reaches, by its name and the family: the nodes of the endpoints in order, or nobody.
	// "a or b" is either one.
	Reach map[string]string
	// Code is the exit code of check, view, status and preview: 0, or 3. Proof is that of prove.
	Code, Proof int
	// Says is a part of the failure that all commands name.
	Says string
	// Rows are the rows of prove, by the same names as Reach; what follows a * may be anything. Cells are
	// the words of the dashboard, by site.
	Rows, Cells map[string]string
}

// Expect waits until connections reach whom they should, and then until every command says what it should. It fails if
// a command names a failure or a warning that check does not.
func (j *Judge) Expect(c Case) {
	j.Helper()
	j.Step(c.Name, func() {
		for _, from := range slices.Sorted(maps.Keys(c.Reach)) {
			j.Eventually(fmt.Sprintf("%s reaches %q", from, c.Reach[from]), func() error { return j.reaches(c, from) })
		}
		var check *answer
		j.Eventually("all commands say so", func() (err error) {
			if check, err = j.ask(c, nil, "check"); err != nil {
				return err
			}
			for _, command := range [][]string{{"view", "svc/" + c.Service.Name}, {"status", "servicegrid/" + c.Grid},
				{"preview", "--key=" + j.Key}} {
				if _, err := j.ask(c, check, command...); err != nil {
					return err
				}
			}
			return j.askPage(c, check)
		})
		proof := c
		proof.Code = c.Proof
		said, err := j.ask(proof, check, "prove", "svc/"+c.Service.Name, "--all-nodes")
		j.Must(err)
		rows := map[string]string{}
		for _, row := range said.Rows {
			rows[row.Node+" "+familyOf(row.Address)] = strings.TrimSpace(row.Verdict + " " + row.Message)
		}
		if !maps.EqualFunc(rows, c.Rows, func(got, want string) bool {
			begin, open := strings.CutSuffix(want, "*")
			return got == want || open && strings.HasPrefix(got, begin)
		}) {
			j.Errorf("kubectl grid prove says\n%q\nnot\n%q", rows, c.Rows)
		}
		j.Logf("kubectl grid prove: %q", rows)
	})
}

func familyOf(address string) string {
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().Is6() {
		return string(corev1.IPv6Protocol)
	}
	return string(corev1.IPv4Protocol)
}

// reaches connects from a node to the Service's address of a family.
func (j *Judge) reaches(c Case, from string) error {
	name, family, _ := strings.Cut(from, " ")
	i := slices.IndexFunc(c.Service.Spec.IPFamilies, func(f corev1.IPFamily) bool { return string(f) == family })
	if i < 0 {
		return fmt.Errorf("the Service has no address of %s", family)
	}
	url := "http://" + net.JoinHostPort(c.Service.Spec.ClusterIPs[i], strconv.Itoa(workload.Port))
	reached, tries := map[string]bool{}, workload.Tries
	if c.Reach[from] == "" {
		tries = 5 // each may take its whole second
	}
	for range tries {
		ctx, cancel := context.WithTimeout(j.Context(), time.Second)
		if answer, err := workload.Ask(ctx, j.Node(name), url); err == nil {
			reached[answer.Node] = true
		}
		cancel()
	}
	if got := strings.Join(slices.Sorted(maps.Keys(reached)), " "); !slices.Contains(strings.Split(c.Reach[from], " or "), got) {
		return fmt.Errorf("it reaches %q", got)
	}
	return nil
}

// answer is that of any command, as far as it is judged.
type answer struct {
	Closed, Diagnosed bool
	Findings          []finding
	Rows              []struct{ Node, Address, Verdict, Message string }
	Matrix            struct {
		Words []struct{ Word, Severity string }
		Sites []struct{ Name, Services string }
	}
	Services []struct {
		Name, State, Message string
		Healthy              bool
	}
}

type finding struct {
	Severity, Check, Message string
	Object                   struct{ Kind, Namespace, Name string }
}

// ask runs a command and judges its answer. check is the answer of check.
func (j *Judge) ask(c Case, check *answer, args ...string) (*answer, error) {
	stdout, stderr, code := suite.Run(j, j.Plugin(append(args, "--output=json")...))
	said := &answer{}
	about := "kubectl grid " + strings.Join(args, " ")
	if err := json.Unmarshal([]byte(stdout), said); err != nil {
		return nil, fmt.Errorf("%s: exit code %d, %w: %s%s", about, code, err, stdout, stderr)
	}
	if code != c.Code {
		return nil, fmt.Errorf("%s: exit code %d, not %d: %v", about, code, c.Code, said.Findings)
	}
	if args[0] == "view" && said.Closed != (c.Code == 0) {
		return nil, fmt.Errorf("%s: closed is %t", about, said.Closed)
	}
	return said, j.agree(about, c, said, check)
}

// agree compares the findings of a command with those of check.
func (j *Judge) agree(about string, c Case, said, check *answer) error {
	var text strings.Builder
	for _, f := range said.Findings {
		if f.Severity != "failure" && f.Severity != "warning" {
			continue
		}
		if f.Severity == "failure" {
			fmt.Fprintf(&text, "%s %s: %s\n", f.Object.Kind, f.Object.Name, f.Message)
		}
		if check != nil && !slices.Contains(check.Findings, f) {
			return fmt.Errorf("%s finds what check does not: %v", about, f)
		}
	}
	failures := text.String()
	if !strings.Contains(failures, c.Says) || (c.Says == "") != (failures == "") {
		return fmt.Errorf("%s names the failures %q, which should say %q", about, failures, c.Says)
	}
	j.Logf("%s: exit code %d %s", about, c.Code, failures)
	return nil
}

// askPage judges what the dashboard says.
func (j *Judge) askPage(c Case, check *answer) error {
	said, err := j.page()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(said.Services, func(s struct {
		Name, State, Message string
		Healthy              bool
	}) bool {
		return s.Name == c.Service.Name
	})
	if i < 0 || !said.Diagnosed {
		return errors.New("the dashboard does not know the Service yet")
	}
	cells := map[string]string{}
	for _, site := range said.Matrix.Sites {
		word := said.Matrix.Words[site.Services[i]-'a']
		cells[site.Name] = word.Word + " " + word.Severity
	}
	service := said.Services[i]
	if service.Healthy != (c.Code == 0) || !maps.Equal(cells, c.Cells) {
		return fmt.Errorf("the dashboard says %+v, %q", service, cells)
	}
	j.Logf("the dashboard: %s, %q; %s", service.State, cells, service.Message)
	return j.agree("the dashboard", c, said, check)
}

// page asks the dashboard, which it starts first, and ends with the test.
func (j *Judge) page() (*answer, error) {
	if j.url == "" {
		command := j.Plugin("dashboard")
		stdout, err := command.StdoutPipe()
		j.Must(err)
		j.Must(command.Start())
		j.Cleanup(func() {
			_ = command.Process.Signal(os.Interrupt) // Wait says how it ended
			if err := command.Wait(); err != nil {
				j.Errorf("the dashboard ended with %v", err)
			}
			j.url = ""
		})
		line, err := bufio.NewReader(stdout).ReadString('\n')
		j.Must(err)
		j.url, j.token, _ = strings.Cut(strings.TrimSpace(line), "/#token=")
	}
	request, err := http.NewRequestWithContext(j.Context(), http.MethodGet, j.url+"/api/overview?key="+j.Key, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+j.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the dashboard: %s, %w: %s", response.Status, err, body)
	}
	said := &answer{}
	return said, json.Unmarshal(body, said)
}
