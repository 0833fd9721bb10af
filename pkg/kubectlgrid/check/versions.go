package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

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
		row{!known, Unknown, about, fmt.Sprintf("its version %q has no meaning here", c.Server.Version),
			"see docs/compatibility.md for the versions that are supported"},
		row{known && server < slicesSince, Failure, about, "it is " + c.Server.Version +
			", and does not serve discovery.k8s.io/v1, which the wrapper follows", upgrade},
		row{known && server < oldestTested, Warning, about, "it is " + c.Server.Version + ", older " + tested, upgrade},
		row{server > newestTested, Warning, about, "it is " + c.Server.Version + ", newer " + tested,
			"look for a newer release of application-grid, and try it on one site first"},
		row{known, OK, about, "it is " + c.Server.Version, ""})
	for _, n := range c.nodes {
		severity, wrong := c.skew(n.kubelet)
		r.all(check, n.Name, row{severity != OK && n.kubelet != "" && n.os != "windows", severity, n.Object,
			"its kubelet's version " + n.kubelet + " " + wrong, "upgrade it"})
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

// checkSkew reports programs whose versions differ from each other.
func (r *Report) checkSkew(c *Cluster) {
	const check = "ProgramVersions"
	sets := Object{Kind: kindDaemonSet, Namespace: system}
	ours, proxies := map[string][]string{}, map[string][]string{} // what has each tag
	for _, program := range []Program{wrapperProgram, daemonProgram, controllerProgram, hubProgram} {
		for _, w := range c.installed(program) {
			ours[tagOf(w.image)] = append(ours[tagOf(w.image)], w.Name)
		}
	}
	for _, n := range c.nodes {
		for _, p := range n.pods {
			// Other nodes may have SuperEdge's.
			if tag := tagOf(p.image); n.isEdge() && (p.program == wrapperProgram || p.program == daemonProgram) &&
				!slices.Contains(ours[tag], string(p.program)) {
				ours[tag] = append(ours[tag], p.Name)
			}
		}
	}
	for _, w := range c.running(kubeProxyProgram) {
		tag := tagOf(w.image)
		proxies[tag] = append(proxies[tag], w.Name)
		severity, wrong := c.skew(tag)
		r.all(check, "", row{severity == Warning, Warning, w.Object, "kube-proxy's version " + tag + " " + wrong,
			"give it the tag of the API server's version, " + c.Server.Version})
	}
	r.all(check, "",
		row{len(ours) > 1, Warning, sets, "the programs are of different versions: " + byTag(ours), "wait until the " +
			"roll-out ends, on nodes without a link when they are back; or apply the same tag for all of them"},
		row{len(proxies) > 1, Warning, sets, "the kube-proxies are of different versions: " + byTag(proxies), "give " +
			"kube-proxy-edge the version of kubeadm's: in your kustomization, or with helm upgrade (kubeProxy.image)"})
	r.well(check, c.knows(kindPod, kindDaemonSet, kindDeployment), sets, "no versions differ")
}

// byTag names the first that have each tag.
func byTag(names map[string][]string) string {
	parts := make([]string, 0, len(names))
	for _, tag := range slices.Sorted(maps.Keys(names)) {
		parts = append(parts, fmt.Sprintf("%s has %q", enumerate.First(names[tag], 5), tag))
	}
	return strings.Join(parts, "; ")
}

// checkPlatforms reports nodes with a platform without images.
func (r *Report) checkPlatforms(c *Cluster) {
	const check = "Platform"
	built := []string{"amd64", "arm64", "arm"}
	for _, n := range c.nodes {
		r.all(check, n.Name, row{n.os == "linux" && !slices.Contains(built, n.arch), Warning, n.Object,
			"there are no images for its architecture " + n.arch,
			"do not make it an edge node, or build images with PLATFORMS=linux_" + n.arch})
	}
	r.well(check, c.knows(kindNode), Object{Kind: kindNode}, "there are images for the architectures of %s",
		enumerate.Count(len(c.nodes), "node"))
}
