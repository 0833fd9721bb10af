package kubeadm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// WriteTools makes a directory for the PATH of someone who follows docs/quickstart.md on the cluster, and returns it.
// It has kubectl, the plugin of this repository, `on NODE COMMAND`, which runs a command on a node, and `cable NODE
// up|down`, which connects a node with the others or takes that link down. `on` finds a node until its next power cut.
func (c *Cluster) WriteTools() (string, error) {
	directory := filepath.Join(c.dir, "tools")
	if err := os.MkdirAll(directory, 0o755); err != nil { //nolint:gosec // programs
		return "", err
	}
	var processes, ports strings.Builder
	for _, node := range c.nodes {
		machine, err := node.machine()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&processes, "%s) process=%d ;;\n", node.name, machine)
		fmt.Fprintf(&ports, "%s) port=%s ;;\n", node.name, portName(node.index))
	}
	const begin = "#!/bin/sh\ncase \"$1\" in\n"
	const unknown = "*) echo \"there is no node $1\" >&2; exit 2 ;;\nesac\n"
	on := begin + processes.String() + unknown + "shift\nexec env -i TERM=\"$TERM\" HOME=/root " + strings.Join(c.environment(), " ") + " nsenter --target \"$process\" " +
		"--mount --uts --ipc --net --pid --cgroup -- \"$@\"\n"
	cable := begin + ports.String() + unknown + "exec ip -n " + c.id + " link set \"$port\" \"$2\"\n"
	for name, script := range map[string]string{
		"kubectl": "#!/bin/sh\nexec '" + filepath.Join(c.options.Bin, "components") + "' kubectl \"$@\"\n",
		"on":      on, "cable": cable,
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(script), 0o755); err != nil { //nolint:gosec // a program
			return "", err
		}
	}
	return directory, os.Symlink(filepath.Join(c.options.Bin, "kubectl-grid"), filepath.Join(directory, "kubectl-grid"))
}
