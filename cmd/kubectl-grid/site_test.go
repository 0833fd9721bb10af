package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// printArguments is a script that prints its arguments, one a line.
const printArguments = "for arg; do echo \"$arg\"; done\n"

// fakeKubectl puts a program kubectl before all others, which is this script.
func fakeKubectl(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// withPods is shop with two pods in each site, of which the second is ready. All have the same labels, as have all pods
// of a grid.
func withPods(t *testing.T) server {
	t.Helper()
	var more []string
	for _, site := range []string{"west", "east"} {
		more = append(more, fmt.Sprintf(`
{apiVersion: apps/v1, kind: Deployment, metadata: {name: echo-%s, namespace: shop,
 ownerReferences: [{kind: DeploymentGrid, name: echo, uid: u, controller: true}]},
 spec: {selector: {matchLabels: {app: echo}}}}
`, site))
		for i, ready := range []string{"False", "True"} {
			more = append(more, fmt.Sprintf(`
{apiVersion: v1, kind: Pod, metadata: {name: echo-%[1]s-%[2]d, namespace: shop,
 labels: {app: echo, pod-template-hash: x}, ownerReferences: [{kind: ReplicaSet, name: echo-%[1]s-x, controller: true}]},
 status: {conditions: [{type: Ready, status: %[3]q}]}}
`, site, i, ready))
		}
	}
	return shop(t, more...)
}

// TestLogsAndExec: kubectl is run on a ready pod of the site, against the cluster that the flags lead to, and its exit
// code is ours.
func TestLogsAndExec(t *testing.T) {
	for _, test := range []struct {
		args string
		code string
		want []string
	}{
		{
			"logs dg/echo --site west", "0",
			[]string{"logs", "--namespace=shop", "pod/echo-west-1"},
		},
		{
			"logs deploymentgrid echo --site east --context x --as jane --as-group a --as-group b -- --tail=20 -f", "7",
			[]string{
				"logs", "--as=jane", "--as-group=a", "--as-group=b", "--context=x", "--namespace=shop",
				"pod/echo-east-1", "--tail=20", "-f",
			},
		},
		{
			"exec dg/echo --site east -it -c main -- sh -c true", "3",
			[]string{
				"exec", "--container=main", "--stdin=true", "--tty=true", "--namespace=shop", "pod/echo-east-1", "--",
				"sh", "-c", "true",
			},
		},
	} {
		fakeKubectl(t, printArguments+"exit "+test.code+"\n")
		o := call(t, withPods(t), strings.Fields(test.args)...)
		if want := strings.Join(test.want, "\n") + "\n"; o.stdout != want ||
			!strings.Contains(o.stderr, "has 2 pods; this is echo-") {
			t.Errorf("%s: got %+v, want %s", test.args, o, want)
		}
		if got := string(rune('0' + o.code)); got != test.code {
			t.Errorf("%s: got exit code %d, want %s", test.args, o.code, test.code)
		}
	}
}

// TestLogsOfACheck: the site's last Job is asked, of this grid and no other owner's.
func TestLogsOfACheck(t *testing.T) {
	s := shop(t)
	s.objects["/apis/batch/v1/namespaces/shop/jobs"] = list{Items: []map[string]any{}}
	fakeKubectl(t, printArguments)
	if o := call(t, s, "logs", "dg/echo", "--site=west", "--check"); o.code != flags.ExitFailure ||
		!strings.Contains(o.stderr, `site "west" has no check`) {
		t.Errorf("got %+v", o)
	}
	var all []string
	for i, by := range []string{"u", "u", "another"} {
		all = append(all, fmt.Sprintf(`
{apiVersion: batch/v1, kind: Job, metadata: {name: check-%d, namespace: shop,
 creationTimestamp: "2026-01-01T00:00:0%[1]dZ", ownerReferences: [{uid: %s, controller: true}]}}
`, i, by))
	}
	s = shop(t, all...)
	o := call(t, s, "logs", "dg/echo", "--site=west", "--check", "--", "--all-containers")
	if want := "logs\n--namespace=shop\njob/check-1\n--all-containers\n"; o.stdout != want {
		t.Errorf("got %+v, want %s", o, want)
	}
}

// TestLogsAndExecRefuse: what is wrong is said before anything runs.
func TestLogsAndExecRefuse(t *testing.T) {
	fakeKubectl(t, printArguments)
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"logs dg/echo":                         {flags.ExitUsage, "name a site: --site"},
		"logs --site east":                     {flags.ExitUsage, "name a grid: KIND/NAME"},
		"logs sg/echo --site east":             {flags.ExitUsage, "a ServiceGrid has no rollout"},
		"logs dg/echo --site east more":        {flags.ExitUsage, "too many arguments: more"},
		"logs dg/echo --site north":            {flags.ExitFailure, `has no site "north"; it has east, west`},
		"logs dg/none --site east":             {flags.ExitFailure, ""},
		"exec dg/echo --site east":             {flags.ExitUsage, "give the command after --"},
		"exec dg/echo --site east --":          {flags.ExitUsage, "give the command after --"},
		"exec dg/echo -- hostname --site east": {flags.ExitUsage, "name a site: --site"},
	} {
		o := call(t, withPods(t), strings.Fields(args)...)
		if o.code != want.code || o.stdout != "" || !strings.Contains(o.stderr, want.says) {
			t.Errorf("%s: got %+v", args, o)
		}
	}
	t.Setenv("PATH", t.TempDir())
	none := withPods(t)
	none.objects["/api/v1/namespaces/shop/pods"] = list{Items: []map[string]any{}}
	if o := call(t, none, "logs", "dg/echo", "--site", "east"); o.code != flags.ExitFailure ||
		!strings.Contains(o.stderr, `the Deployment echo-east of site "east" has no pods`) {
		t.Errorf("without pods: got %+v", o)
	}
	if o := call(t, withPods(t), "logs", "dg/echo", "--site", "east"); o.code != flags.ExitFailure ||
		!strings.Contains(o.stderr, "running kubectl: ") {
		t.Errorf("without kubectl: got %+v", o)
	}
}

// TestDiffOfSite: what one site has is compared with what it will get; the other sites are not asked about.
func TestDiffOfSite(t *testing.T) {
	s := &dryRuns{server: shop(t)}
	spec := s.objects["/apis/superedge.io/v1/namespaces/shop/deploymentgrids/echo"].(map[string]any)["spec"].(map[string]any)
	spec["template"] = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "echo"}}}
	spec["rollout"] = map[string]any{}
	o := call(t, s, "diff", "dg/echo", "--site", "west")
	if o.code != exitDifferences || !strings.Contains(o.stdout, "1 site: west\n") || strings.Contains(o.stdout, "east") ||
		!strings.Contains(o.stdout, "+    superedge.io/revision: echo-") || len(s.kept) > 0 {
		t.Errorf("got %+v; these requests were no dry runs: %q", o, s.kept)
	}
	for args, says := range map[string]string{
		"diff dg/echo":                   "-f FILE, or a grid of the cluster and a site",
		"diff dg/echo --site west -f x":  "-f FILE, or a grid of the cluster and a site",
		"diff --site west -f x":          "-f FILE, or a grid of the cluster and a site",
		"diff dg/echo more --site west":  "too many arguments",
		"diff sg/echo --site west":       "a ServiceGrid has no rollout",
		"diff dg/echo --site north":      `has no site "north"`,
		"diff deployment/x --site north": "is not a kind of grid",
	} {
		if o := call(t, s, strings.Fields(args)...); o.code != flags.ExitUsage || !strings.Contains(o.stderr, says) {
			t.Errorf("%s: got %+v", args, o)
		}
	}
}
