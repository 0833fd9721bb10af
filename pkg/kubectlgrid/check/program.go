package check

import (
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Program is the program of a container, if it matters here.
type Program string

// The programs.
const (
	wrapperProgram    Program = "application-grid-wrapper"
	daemonProgram     Program = "statefulset-grid-daemon"
	controllerProgram Program = "application-grid-controller"
	hubProgram        Program = "application-grid-hub"
	kubeProxyProgram  Program = "kube-proxy"
	ciliumProgram     Program = "cilium-agent"
	calicoProgram     Program = "calico-node"
	nodeLocalProgram  Program = "node-cache"
	antreaProgram     Program = "antrea-agent"
	kubeRouterProgram Program = "kube-router"
	ovnProgram        Program = "ovnkube-controller"
	kubeOVNProgram    Program = "kube-ovn"
)

// defaultPort is the wrapper's default port.
const defaultPort = 51006

// dataPlanes are programs that may program Services in place of kube-proxy.
var dataPlanes = []Program{ciliumProgram, calicoProgram, antreaProgram, kubeRouterProgram, ovnProgram, kubeOVNProgram}

// programs are the recognised programs. The command decides first, whatever the name of the container.
var programs = append([]Program{wrapperProgram, daemonProgram, controllerProgram, hubProgram, kubeProxyProgram,
	nodeLocalProgram}, dataPlanes...)

// containersOf returns the containers of a pod that run one of the programs, or that take the wrapper's port of their
// node, without those that end before the others start.
func containersOf(pod *corev1.PodSpec) []*corev1.Container {
	var found []*corev1.Container
	sidecars := slices.DeleteFunc(slices.Clone(pod.InitContainers), func(c corev1.Container) bool {
		return ptr.Deref(c.RestartPolicy, "") != corev1.ContainerRestartPolicyAlways
	})
	for _, c := range slices.Concat(pod.Containers, sidecars) {
		if programOf(&c) != "" || takesPort(&c, pod.HostNetwork) {
			found = append(found, &c)
		}
	}
	return found
}

// programOf returns the known program that a container runs, or "". It looks at the names of the command, of the
// container and of the image, because images are renamed, and SuperEdge's pods have other labels.
func programOf(c *corev1.Container) Program {
	if runs := Program(executable(commandLine(c))); slices.Contains(programs, runs) {
		return runs
	}
	image := path.Base(repository(c.Image))
	i := slices.IndexFunc(programs, func(p Program) bool {
		// GKE's image is kube-proxy-amd64.
		return c.Name == string(p) || image == string(p) || strings.HasPrefix(image, string(p)+"-")
	})
	if i < 0 {
		return ""
	}
	return programs[i]
}

// executable returns the name of the program that a command line starts, directly or through a shell.
func executable(words []string) string {
	for i, word := range words {
		name := path.Base(word)
		shell := i == 0 && slices.Contains([]string{"sh", "ash", "bash", "dash"}, name)
		if !shell && name != "exec" && !strings.HasPrefix(word, "-") {
			return name
		}
		if i == 0 && !shell {
			return "" // arguments of the image's own program
		}
	}
	return ""
}

// commandLine returns the words of a container's command and arguments, including those of a script that is one
// argument of a shell.
func commandLine(c *corev1.Container) []string {
	return strings.Fields(strings.Join(slices.Concat(c.Command, c.Args), " "))
}

// envOf returns the environment of a container, without variables from other objects.
func envOf(c *corev1.Container) map[string]string {
	env := map[string]string{}
	for _, variable := range c.Env {
		env[variable.Name] = variable.Value
	}
	return env
}

// hostnameOf returns the name that a wrapper on a node takes for its node's, by the flag --hostname; "" if the flag is
// not given, or not known.
func hostnameOf(c *corev1.Container, node string) string {
	name, _ := flagOf(commandLine(c), "hostname", "")
	for _, variable := range c.Env {
		value, from := variable.Value, variable.ValueFrom
		if from != nil && from.FieldRef != nil && from.FieldRef.FieldPath == "spec.nodeName" {
			value, from = node, nil
		}
		if from == nil {
			name = strings.ReplaceAll(name, "$("+variable.Name+")", value)
		}
	}
	if strings.Contains(name, "$(") {
		return ""
	}
	return strings.ToLower(strings.TrimSpace(name))
}

// flagOf returns the last value of a flag, as the programs parse it: --name=value or --name value. A boolean flag has
// the value alone without one, and takes no next word.
func flagOf(words []string, name, alone string) (value string, given bool) {
	for i, word := range words {
		flag, rest, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		switch {
		case flag != name || !strings.HasPrefix(word, "-"):
		case hasValue:
			value, given = strings.Trim(rest, `"'`), true
		case alone != "":
			value, given = alone, true
		case i+1 < len(words):
			value, given = words[i+1], true
		}
	}
	return value, given
}

func boolFlag(words []string, name string, otherwise bool) bool {
	text, _ := flagOf(words, name, "true")
	if value, err := strconv.ParseBool(text); err == nil {
		return value
	}
	return otherwise
}

// repository returns an image without its tag and digest, and tagOf its tag.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i]
	}
	return image
}

func tagOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	return strings.TrimPrefix(strings.TrimPrefix(image, repository(image)), ":")
}

// listens matches flags with an address or port at which a program listens.
var listens = regexp.MustCompile(`^--?[a-z-]*(bind|listen|addr|port)[a-z-]*$`)

// takesPort reports whether a container declares that what is sent to the wrapper's port of the node's loopback reaches
// it. Outside of the node's network, the network plugin forwards host ports, also from the loopback.
func takesPort(c *corev1.Container, hostNetwork bool) bool {
	const port = defaultPort
	for _, p := range c.Ports {
		if p.HostPort == port && onLoopback(p.HostIP) || hostNetwork && p.ContainerPort == port {
			return true
		}
	}
	words := commandLine(c)
	for i, word := range words {
		flag, value, hasValue := strings.Cut(word, "=")
		if !hasValue && i+1 < len(words) {
			value = words[i+1]
		}
		if hostNetwork && listens.MatchString(flag) && !strings.Contains(value, "://") && portOf(value) == port {
			host, _, _ := net.SplitHostPort(strings.Trim(value, `"'`)) // a port alone has none
			return onLoopback(host)
		}
	}
	return false
}

// onLoopback reports whether a listener at a host, empty for all addresses, listens on the loopback.
func onLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err != nil || ip.IsUnspecified() || ip.IsLoopback()
}

// portOf returns the port of an address, or the number itself; 0 if it has none.
func portOf(address string) int32 {
	address = strings.Trim(address, `"'`)
	number, err := strconv.ParseInt(address[strings.LastIndex(address, ":")+1:], 10, 32)
	if err != nil {
		return 0
	}
	return int32(number)
}
