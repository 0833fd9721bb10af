package dashboard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// manifests are a grid with a rollout in two waves, its closed Service, one that is open, and one that is closed and
// has no endpoint in the north.
const manifests = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: echo}
spec:
  gridUniqKey: KEY
  siteLabel: true
  template:
    replicas: 1
    selector: {matchLabels: {app: echo}}
    template: {metadata: {labels: {app: echo}}, spec: {containers: [{name: echo, image: echo:v1}]}}
  rollout: {waves: [{name: lab, sites: {names: [east]}, approval: Manual}, {name: rest}]}
---
apiVersion: superedge.io/v1
kind: ServiceGrid
metadata: {name: echo}
spec: {gridUniqKey: KEY, template: {selector: {app: echo}, ports: [{port: 80}]}}
---
apiVersion: v1
kind: Service
metadata: {name: open}
spec: {selector: {app: echo}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: cache, annotations: {topologyKeys: '["KEY"]'}}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cache-1, labels: {kubernetes.io/service-name: cache}}
addressType: IPv4
ports: [{port: 80}]
endpoints:
- {addresses: [10.9.0.1], nodeName: edge-0, conditions: {ready: true}, targetRef: {kind: Pod, name: cache-0}}
- {addresses: [10.9.0.2], nodeName: edge-1, conditions: {ready: true}, targetRef: {kind: Pod, name: cache-1}}
- {addresses: [10.9.0.3], nodeName: edge-2, conditions: {ready: false}, targetRef: {kind: Pod, name: cache-2}}
`

// TestDashboard follows a user's day on the page.
func TestDashboard(t *testing.T) {
	f := newFixture(t)
	for name, site := range map[string]string{"edge-0": "east", "edge-1": "west", "edge-2": "north",
		"edge-3": "north"} {
		f.node(name, site, v1.EdgeNodeStatic)
	}
	f.apply(manifests)
	f.Eventually("the grid is ready in three sites", func() error {
		if text := f.prints("status", "dg/echo"); strings.Count(text, "   Ready\n") != 3 {
			return fmt.Errorf("got\n%s", text)
		}
		return nil
	})
	mark, err := shared.AuditMark()
	f.Must(err)
	d := f.dashboard("--namespace="+f.namespace, fmt.Sprintf("--port=%d", suite.FreePort(t))) // for expectToken
	b := f.browse(d.url)
	b.until("it is live", `document.getElementById("connection").textContent === "Live"`)
	if hash := evaluate[string](b, "location.hash"); hash != "#/" {
		t.Errorf("the address still has %s", hash)
	}
	f.expectOverview(b)
	for _, name := range []string{"echo-svc", "open", "cache"} {
		f.expectView(b, name)
	}
	expectNarrow(b)
	b.show("#/", "")
	b.follow("DeploymentGrid " + f.namespace + "/echo")
	f.expectStatus(b)
	b.expectAccessible("a grid")
	f.rollOut(b)
	f.expectStatus(b)
	f.expectRelabel(b)
	expectKeyboard(b)
	f.expectToken(b, d)
	f.expectOnlyReads(mark)
}

// expectOverview expects the map, and what is not well first.
func (f *fixture) expectOverview(b *browser) {
	f.Helper()
	b.until("a site that lacks an endpoint is the first",
		`document.querySelector("#matrix tbody tr")?.dataset.site === "north"`)
	b.until("the summary", `document.getElementById("summary").textContent ===
		"3 sites: 1 failed, 2 ready. 3 Services, 1 not well. 2 grids."`)
	f.expectMatrix(b)
	// What axe does not complain of when there is something to complain of, would say nothing.
	evaluate[bool](b, `document.querySelector("main").append(Object.assign(document.createElement("img"), { id: "barrier" })), true`)
	if found := b.violations(); len(found) != 1 || !strings.Contains(found[0], "image-alt") {
		f.Errorf("of a picture without a text axe says %q", found)
	}
	evaluate[bool](b, `document.getElementById("barrier").remove() === undefined`)
	b.expectAccessible("the overview")
	b.shot("overview-light")
}

// expectMatrix expects the verdicts that kubectl grid view prints, the Service that needs attention first, and that a
// cell leads to why.
func (f *fixture) expectMatrix(b *browser) {
	f.Helper()
	if first := evaluate[string](b, `document.querySelector("#matrix th[data-severity=failure] a").textContent`); first != f.namespace+"/cache" {
		f.Errorf("the first Service is %s", first)
	}
	for _, name := range []string{"echo-svc", "cache"} {
		f.Eventually("the matrix and kubectl grid view "+name, func() error {
			var printed []string
			for _, row := range rows(f.prints("view", name), "SITE ") {
				if cells := strings.Split(row, " | "); cells[0] != "<none>" {
					printed = append(printed, cells[0]+" "+cells[2])
				}
			}
			printed = slices.Compact(printed)
			shown := evaluate[[]string](b, fmt.Sprintf(`[...document.querySelectorAll("#matrix [data-site]")].map((row) =>
				row.dataset.site + " " + row.querySelector('[data-column=%q]').textContent)`, f.namespace+"/"+name))
			if slices.Sort(shown); !slices.Equal(shown, printed) || len(shown) != 3 {
				return fmt.Errorf("the page %q, the plugin %q", shown, printed)
			}
			return nil
		})
	}
	evaluate[bool](b, `document.querySelector("[data-site=north] [data-column$='/cache'] a").click() === undefined`)
	b.until("why", `document.getElementById("detail-title").textContent.endsWith("in site north")`)
	words := evaluate[string](b, `document.getElementById("detail-body").innerText`)
	for _, want := range []string{"edge-2", "edge-3", "none", "kubectl grid view svc/cache -n " + f.namespace} {
		if !strings.Contains(words, want) {
			f.Errorf("%s is not in %s", want, words)
		}
	}
	b.expectAccessible("a cell")
	b.shot("cell")
	b.show("#/", "")
}

// expectView expects that a Service's page shows what kubectl grid view prints.
func (f *fixture) expectView(b *browser, name string) {
	f.Helper()
	b.follow(f.namespace + "/" + name)
	f.Eventually("the page and kubectl grid view "+name, func() error {
		printed := f.prints("view", name)
		if got, want := b.table("[data-part=reach]"), rows(printed, "SITE "); !slices.Equal(got, want) ||
			len(got) == 0 {
			return fmt.Errorf("the page\n%s\nthe plugin\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		words := evaluate[string](b, `document.querySelector("[data-part=words]").innerText`)
		lines := strings.Split(strings.TrimSpace(printed), "\n")
		for _, line := range []string{lines[0], lines[len(lines)-1]} {
			if !gap.MatchString(line) && !strings.Contains(words, line) {
				return fmt.Errorf("%q is not in %s", line, words)
			}
		}
		return nil
	})
	b.expectAccessible("Service " + name)
	b.shot("service-" + name)
}

// expectNarrow expects that on a narrow screen nothing is cut, and nothing is beside the screen.
func expectNarrow(b *browser) {
	b.f.Helper()
	b.do(chromedp.EmulateViewport(380, 900))
	if cut := evaluate[[]string](b, `[document.documentElement, ...document.querySelectorAll(".scroll")].
		filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.tagName + " " + e.scrollWidth + " > " + e.clientWidth)`); len(cut) > 0 {
		b.f.Errorf("on a screen of 380 px there is more than can be seen: %q", cut)
	}
	b.expectAccessible("a narrow screen")
	b.shot("narrow")
	b.do(chromedp.EmulateViewport(1200, 900))
}

// expectStatus expects that a grid's page shows what kubectl grid status prints.
func (f *fixture) expectStatus(b *browser) {
	f.Helper()
	f.Eventually("the page and kubectl grid status", func() error {
		var want []string
		for _, row := range rows(f.prints("status", "dg/echo"), "KIND ") {
			cells := strings.Split(row, " | ")
			if cells[3] != "<all>" {
				want = append(want, strings.Join(cells[3:], " | "))
			}
		}
		if got := b.table("[data-part=sites]"); !slices.Equal(got, want) || len(got) != 3 {
			return fmt.Errorf("the page\n%s\nthe plugin\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// expectWaves expects that a grid's page shows what kubectl grid rollout status prints, and that it prints this.
func (f *fixture) expectWaves(b *browser, waits string) {
	f.Helper()
	f.Eventually("the page and kubectl grid rollout status: "+waits, func() error {
		printed := f.prints("rollout", "status", "dg/echo", "--watch=false")
		if !strings.Contains(printed, waits) {
			return fmt.Errorf("the plugin: %s", printed)
		}
		got := evaluate[string](b, `document.querySelector("[data-part=rollout]").textContent`)
		printed, _, _ = strings.Cut(printed, "\nTo continue it: ")
		lines := strings.Split(strings.TrimSpace(printed), "\n")
		want := "Rollout " + lines[len(lines)-1]
		for _, line := range lines[1 : len(lines)-1] {
			c := gap.Split(line, -1)
			sites := c[1] + " sites"
			if c[1] == "1" {
				sites = "1 site"
			}
			want += fmt.Sprintf("%s: %s%s of %s updated, %s ready, %s proven, %s failed, %s suspects, %s deferred", c[0],
				c[8], c[2], sites, c[3], c[4], c[5], c[6], c[7])
		}
		if got != want {
			return fmt.Errorf("the page\n%s\nthe plugin\n%s", got, want)
		}
		return nil
	})
}

// rollOut rolls out wave by wave.
func (f *fixture) rollOut(b *browser) {
	f.Helper()
	f.expectWaves(b, "Complete")
	f.apply(strings.ReplaceAll(manifests, "echo:v1", "echo:v2"))
	f.expectWaves(b, "AwaitingApproval, wave lab")
	b.expectAccessible("a rollout that waits")
	b.shot("rollout")
	b.follow("DeploymentGrid " + f.namespace + "/echo")
	_, err := suite.Output(f.Plugin(f.ctx, "rollout", "approve", "dg/echo", "--namespace="+f.namespace))
	f.Must(err)
	f.expectWaves(b, "Complete")
}

// expectRelabel expects that a relabel appears within a second.
func (f *fixture) expectRelabel(b *browser) {
	f.Helper()
	b.show("#/", "")
	var took time.Duration
	unhindered := suite.Unhindered(func() {
		took = b.appears("south", func() { f.Must(shared.RelabelNode(f.ctx, "edge-3", f.key, "south")) })
	})
	f.Logf("a relabel appears after %s, %s of it with a processor for everything", took, unhindered)
	if unhindered > time.Second {
		f.Errorf("a relabel appears after %s", unhindered)
	}
	b.show("#/sites/south", "Site south")
	b.until("the site has its node", `document.querySelector("[data-part=words]")?.textContent.includes("Nodes: edge-3")`)
	b.expectAccessible("a site")
	b.shot("site")
	b.scheme("dark")
	b.shot("site-dark")
	b.scheme("light")
}

// expectKeyboard goes by keyboard into the matrix, along it, into a site, and back to where it was.
func expectKeyboard(b *browser) {
	b.f.Helper()
	b.show("#/", "")
	evaluate[bool](b, `document.querySelector("#matrix tbody a").focus() === undefined`)
	b.press(kb.ArrowDown)
	b.press(kb.ArrowRight)
	b.press(kb.ArrowLeft)
	second := evaluate[string](b, `document.activeElement.closest("tr").dataset.site ?? ""`)
	if want := evaluate[string](b, `document.querySelectorAll("#matrix tbody tr")[1].dataset.site`); second != want {
		b.f.Errorf("the arrow keys lead to %q, and not to %q", second, want)
	}
	if n := evaluate[int](b, `document.querySelectorAll("#matrix tbody a[tabindex='0']").length`); n != 1 {
		b.f.Errorf("%d cells are in the order of the Tab key", n)
	}
	b.press(kb.Enter)
	b.until("the title of what was chosen has the focus",
		fmt.Sprintf(`document.activeElement.id === "detail-title" && document.activeElement.textContent === "Site %s"`,
			second))
	b.press(kb.Escape)
	b.until("the focus is back", fmt.Sprintf(`document.getElementById("detail").hidden && document.activeElement.closest("tr")?.dataset.site === %q`, second))
}

// expectToken expects that a page that is loaded again has kept the token, and another tab has none; and that the page
// tells the end of the command.
func (f *fixture) expectToken(b *browser, d *dashboard) {
	f.Helper()
	b.do(chromedp.Reload())
	b.until("it is live again", `document.getElementById("connection").textContent === "Live"`)
	b.expectQuiet(d.origin())
	stranger := f.browse(d.origin() + "/")
	stranger.until("who has no token is told",
		`document.getElementById("connection").textContent.includes("no valid token")`)
	d.end()
	b.until("the end is told", `document.getElementById("connection").textContent.includes("has ended")`)
	// The command that is started again on the same port has another token, which the same tab can take.
	_, port, _ := strings.Cut(strings.TrimPrefix(d.origin(), "http://"), ":")
	again := f.dashboard("--namespace="+f.namespace, "--port="+port)
	b.until("the old token is not good any more",
		`document.getElementById("connection").textContent.includes("no valid token")`)
	evaluate[bool](b, fmt.Sprintf("(location.href = %q, true)", again.url))
	b.until("the new one is", `document.getElementById("connection").textContent === "Live"`)
}

// expectOnlyReads expects that nothing was written to the cluster since the mark, but for the approval.
func (f *fixture) expectOnlyReads(mark int64) {
	f.Helper()
	requests, err := shared.Audited(mark, func(r cluster.Request) bool {
		return strings.HasPrefix(r.UserAgent, "kubectl-grid") && !strings.Contains(r.RequestURI, "fieldManager=") &&
			r.IsWrite()
	})
	f.Must(err)
	for _, r := range requests {
		// kubectl grid rollout approve writes to the grid, and asks first who it is.
		if (r.ObjectRef.Resource != "deploymentgrids" || r.Verb != "patch") &&
			r.ObjectRef.Resource != "selfsubjectreviews" {
			f.Errorf("kubectl grid has written: %s", r)
		}
	}
}

// programs are a wrapper and a kube-proxy on every edge node.
const programs = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: application-grid-wrapper, namespace: kube-system}
spec:
  selector: {matchLabels: {app: wrapper}}
  template:
    metadata: {labels: {app: wrapper}}
    spec:
      nodeSelector: {superedge.io/application-grid: "true"}
      hostNetwork: true
      containers: [{name: application-grid-wrapper, image: application-grid-wrapper:v1}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: proxy}}
  template:
    metadata: {labels: {app: proxy}}
    spec:
      nodeSelector: {superedge.io/application-grid: "true"}
      hostNetwork: true
      containers: [{name: kube-proxy, image: kube-proxy:v1, command: [kube-proxy, "--master=http://localhost:51006"]}]
`

// TestPicture: of a cluster that is well, with one rollout under way, the page says so. This is the README's picture,
// which is written if DASHBOARD_PICTURE is set.
func TestPicture(t *testing.T) {
	f := newFixture(t)
	f.settle("shop", "site")
	for name, site := range map[string]string{"edge-0": "east", "edge-1": "west", "edge-2": "north",
		"edge-3": "north"} {
		f.node(name, site, v1.EdgeNodePods)
	}
	f.run(programs)
	well := strings.NewReplacer("ready: false", "ready: true", "approval: Manual", "soak: 1h").Replace(manifests)
	f.apply(well)
	f.Eventually("the first revision is everywhere", func() error {
		if text := f.prints("rollout", "status", "dg/echo", "--watch=false"); !strings.Contains(text, "Complete") {
			return fmt.Errorf("got\n%s", text)
		}
		return nil
	})
	f.apply(strings.ReplaceAll(well, "echo:v1", "echo:v2"))
	b := f.browse(f.dashboard("--namespace=" + f.namespace).url)
	b.until("the canary soaks", `document.getElementById("grids").textContent.includes("Soaking")`)
	b.until("all is well", `document.querySelectorAll("#matrix [data-word=own]").length === 6 &&
		!document.querySelector("#matrix [data-severity=failure]") &&
		document.getElementById("summary").textContent === "3 sites: 3 ready. 3 Services. 2 grids."`)
	b.expectAccessible("a cluster that is well")
	shot := b.shot("picture")
	if os.Getenv("DASHBOARD_PICTURE") == "" {
		return
	}
	if len(shot) > 200<<10 {
		t.Errorf("the picture has %d bytes", len(shot))
	}
	f.Must(os.WriteFile(filepath.Join(suite.Repository(f), "docs", "dashboard.png"), shot, 0o600))
}

// TestFewRights: a user who may read Services only sees what the page leaves out, and why.
func TestFewRights(t *testing.T) {
	f := newFixture(t)
	f.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [services], verbs: [list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]
`)
	d := f.dashboard("--namespace="+f.namespace, "--as=jane")
	b := f.browse(d.url)
	b.until("what may not be read is said", `document.querySelectorAll("#notices li").length >= 5`)
	text := evaluate[string](b, `document.getElementById("notices").textContent`)
	if !strings.Contains(text, "You may not read nodes: ") || strings.Contains(text, "You may not read services") {
		t.Errorf("it says %s", text)
	}
	summary := evaluate[string](b, `document.getElementById("summary").textContent`)
	if want := "The sites are not known. Who sees which Services is not known. " +
		"0 grids, and there may be others that you may not read."; summary != want {
		t.Errorf("the summary is %s", summary)
	}
	b.expectAccessible("a page of few rights")
	b.shot("few-rights")
}

// TestServed: what is no port, or one that is taken, is an error.
func TestServed(t *testing.T) {
	f := newFixture(t)
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--port=70000"}, 2, "value out of range"},
		{[]string{"--server=https://127.0.0.1:1"}, 1, "asking the cluster"},
	} {
		_, stderr, code := suite.Run(f, f.Plugin(f.ctx, append([]string{"dashboard"}, test.args...)...))
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%q: exit code %d: %s", test.args, code, stderr)
		}
	}
	d := f.dashboard()
	_, port, _ := strings.Cut(strings.TrimPrefix(d.origin(), "http://"), ":")
	if _, err := suite.Output(f.Plugin(f.ctx, "dashboard", "--port="+port)); err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port that is taken: %v", err)
	}
}
