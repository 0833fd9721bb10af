package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/application-grid/application-grid/pkg/enumerate"
)

// The minor versions of Kubernetes 1 that the project's tests run with, and those that something needs.
const (
	oldestTested, newestTested = 29, 37
	// slicesSince is when discovery.k8s.io/v1 came, which the wrapper follows.
	slicesSince = 21
	// oldestSkew is how many minor versions a kubelet or a kube-proxy may be older than the API server.
	oldestSkew = 3
)

// minor is the minor version of v1.37.1-gke.1 and the like.
func minor(version string) (int, bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 || parts[0] != "1" {
		return 0, false
	}
	digits := strings.TrimRightFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' })
	number, err := strconv.Atoi(digits)
	return number, err == nil
}

// checkVersions compares the versions of the API server and the nodes with each other and with what is tested.
func (r *report) checkVersions(c *Cluster) {
	const check = "Versions"
	about := Object{Kind: "API server"}
	server, known := minor(c.version)
	switch {
	case c.version == "":
	case !known:
		r.add(Unknown, check, about, fmt.Sprintf("its version %q has no meaning here", c.version),
			"see docs/install.md for the versions that are supported")
	case server < slicesSince:
		r.add(Failure, check, about,
			fmt.Sprintf("it is %s, and does not serve discovery.k8s.io/v1, which the wrapper follows", c.version),
			fmt.Sprintf("upgrade Kubernetes to 1.%d or newer", oldestTested))
	case server < oldestTested:
		r.add(Warning, check, about,
			fmt.Sprintf("it is %s, older than what is tested, 1.%d to 1.%d", c.version, oldestTested,
				newestTested),
			fmt.Sprintf("upgrade Kubernetes to 1.%d or newer", oldestTested))
	case server > newestTested:
		r.add(Warning, check, about,
			fmt.Sprintf("it is %s, newer than what is tested, 1.%d to 1.%d", c.version, oldestTested,
				newestTested),
			"look for a newer release of application-grid, and try it on one site first")
	default:
		r.ok(check, about, "it is %s", c.version)
	}
	if !c.knows(kindNode) || !known {
		return
	}
	byVersion := map[string][]*node{}
	for i := range c.nodes {
		if n := &c.nodes[i]; n.os != "windows" {
			byVersion[n.kubelet] = append(byVersion[n.kubelet], n)
		}
	}
	for version, nodes := range byVersion {
		kubelet, ok := minor(version)
		var problem string
		switch {
		case !ok:
			problem = "has no meaning here"
		case kubelet > server:
			problem = "is newer than the API server's " + c.version
		case kubelet < server-oldestSkew:
			problem = fmt.Sprintf("is more than %d minor versions older than the API server's %s",
				oldestSkew, c.version)
		case kubelet < oldestTested:
			problem = fmt.Sprintf("is older than what is tested, 1.%d to 1.%d", oldestTested, newestTested)
		default:
			continue
		}
		r.add(Warning, check, aboutNodes(nodes), fmt.Sprintf("the kubelet's version %s %s", version, problem),
			"upgrade "+namesOf(nodes))
	}
}

// checkPlatforms looks for nodes that no image is made for.
func (r *report) checkPlatforms(c *Cluster) {
	const check = "Platform"
	if !c.knows(kindNode) {
		return
	}
	byArch := map[string][]*node{}
	for i := range c.nodes {
		if n := &c.nodes[i]; n.os == "linux" && !slices.Contains([]string{"amd64", "arm64", "arm"}, n.arch) {
			byArch[n.arch] = append(byArch[n.arch], n)
		}
	}
	for arch, nodes := range byArch {
		r.add(Warning, check, aboutNodes(nodes), "there are no images for the architecture "+arch,
			"do not make edge nodes of "+namesOf(nodes)+", or build images with PLATFORMS=linux_"+arch)
	}
	if r.clean(check) {
		r.ok(check, Object{Kind: kindNode}, "there are images for the architectures of %s", count(len(c.nodes), "node"))
	}
}

// namedNodes is how many nodes a sentence names before it only counts.
const namedNodes = 3

// namesOf names the first nodes, and counts the others.
func namesOf(nodes []*node) string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.name)
	}
	return enumerate.First(names, namedNodes)
}

// aboutNodes is a single node, or nodes in general.
func aboutNodes(nodes []*node) Object {
	if len(nodes) == 1 {
		return nodes[0].about()
	}
	return Object{Kind: kindNode}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
