package check

import (
	"fmt"
	"slices"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
)

// The minor versions of Kubernetes 1 with which the project's tests run, and other limits.
const (
	oldestTested, newestTested = 29, 37
	// slicesSince is the first version with discovery.k8s.io/v1, which the wrapper follows.
	slicesSince = 21
	// oldestSkew is how many minor versions a kubelet or a kube-proxy may be older than the API server.
	oldestSkew = 3
)

// tested is how a version is compared with those of the tests.
var tested = fmt.Sprintf("than what is tested, 1.%d to 1.%d", oldestTested, newestTested)

// minor returns the minor version of a version like v1.37.1-gke.1.
func minor(version string) (int, bool) {
	parsed, err := utilversion.ParseGeneric(version)
	if err != nil || parsed.Major() != 1 {
		return 0, false
	}
	return int(parsed.Minor()), true
}

// checkVersions compares the versions of the API server and the nodes with each other and with what is tested.
func (r *Report) checkVersions(c *Cluster) {
	const check = "Versions"
	about, upgrade := Object{Kind: "API server"}, fmt.Sprintf("upgrade Kubernetes to 1.%d or newer", oldestTested)
	server, known := minor(c.Server.Version)
	r.first(check, "",
		row{!known, Unknown, about,
			fmt.Sprintf("its version %q has no meaning here", c.Server.Version),
			"see docs/compatibility.md for the versions that are supported"},
		row{known && server < slicesSince, Failure, about, fmt.Sprintf("it is %s, and does not serve "+
			"discovery.k8s.io/v1, which the wrapper follows", c.Server.Version), upgrade},
		row{known && server < oldestTested, Warning, about, fmt.Sprintf("it is %s, older %s", c.Server.Version, tested),
			upgrade},
		row{server > newestTested, Warning, about, fmt.Sprintf("it is %s, newer %s", c.Server.Version, tested),
			"look for a newer release of application-grid, and try it on one site first"},
		row{known, OK, about, "it is " + c.Server.Version, ""})
	if !c.knows(kindNode) || !known {
		return
	}
	for version, nodes := range c.nodesBy(func(n *node) string {
		if n.os == "windows" {
			return ""
		}
		return n.kubelet
	}) {
		severity, wrong := c.skew(version)
		r.all(check, "", row{severity != OK, severity, aboutNodes(nodes), "the kubelet's version " + version + " " +
			wrong, "upgrade " + namesOf(nodes)})
	}
}

// skew returns what is wrong with the version of a kubelet or a kube-proxy, in words; OK if nothing is.
func (c *Cluster) skew(version string) (severity Severity, wrong string) {
	server, known := minor(c.Server.Version)
	switch own, ok := minor(version); {
	case !ok:
		return Unknown, "has no meaning here"
	case known && own > server:
		return Warning, "is newer than the API server's " + c.Server.Version
	case known && own < server-oldestSkew:
		return Warning, fmt.Sprintf("is more than %d minor versions older than the API server's %s", oldestSkew,
			c.Server.Version)
	case own < oldestTested:
		return Warning, "is older " + tested
	}
	return OK, ""
}

// nodesBy groups the nodes by the result of a function. It leaves out nodes with an empty result.
func (c *Cluster) nodesBy(say func(*node) string) map[string][]*node {
	groups := map[string][]*node{}
	for _, n := range c.nodes {
		if name := say(n); name != "" {
			groups[name] = append(groups[name], n)
		}
	}
	return groups
}

// checkPlatforms reports nodes with a platform without images.
func (r *Report) checkPlatforms(c *Cluster) {
	const check = "Platform"
	for arch, nodes := range c.nodesBy(func(n *node) string {
		if n.os != "linux" || slices.Contains([]string{"amd64", "arm64", "arm"}, n.arch) {
			return ""
		}
		return n.arch
	}) {
		r.add(Warning, check, aboutNodes(nodes), "there are no images for the architecture "+arch,
			"do not make edge nodes of "+namesOf(nodes)+", or build images with PLATFORMS=linux_"+arch)
	}
	r.well(check, c.knows(kindNode), Object{Kind: kindNode}, "there are images for the architectures of %s",
		enumerate.Count(len(c.nodes), "node"))
}

// namedNodes is how many nodes a sentence names; it counts the others.
const namedNodes = 3

// namesOf names the first nodes, and counts the others.
func namesOf(nodes []*node) string {
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		names = append(names, n.name)
	}
	return enumerate.First(names, namedNodes)
}

// aboutNodes returns the object of a single node, or of nodes in general.
func aboutNodes(nodes []*node) Object {
	if len(nodes) == 1 {
		return nodes[0].about()
	}
	return Object{Kind: kindNode}
}
