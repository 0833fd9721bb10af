package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/netns"
)

// tools are the programs that kube-proxy runs, with the Debian packages that have them.
var tools = []struct{ program, debianPackage string }{
	{"nft", "nftables"},
	{"iptables", "iptables"},
	{"conntrack", "conntrack"},
}

// checkMachine looks whether nodes can be had, and for the programs that kube-proxy runs, of which it installs what is
// missing if it may.
func checkMachine(ctx context.Context, install bool) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces need root, and this is user %d", os.Geteuid())
	}
	if err := netns.Supported(); err != nil {
		return err
	}
	// A login shell of an ordinary user on Debian lacks these.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return fmt.Errorf("extending PATH: %w", err)
	}
	missing := missingPackages()
	if len(missing) == 0 {
		return nil
	}
	packages := strings.Join(missing, " ")
	command := "apt-get update && apt-get install -y --no-install-recommends " + packages
	_, err := exec.LookPath("apt-get")
	switch {
	case err != nil:
		return fmt.Errorf("kube-proxy needs programs that this machine lacks: install %s (names of the Debian packages)", packages)
	case !install:
		return fmt.Errorf("kube-proxy needs programs that this machine lacks. As root, run\n  %s\nor give --install to have it done", command)
	}
	fmt.Printf("Installing what kube-proxy needs: %s\n", command)
	cmd := exec.CommandContext(ctx, "sh", "-c", command) //nolint:gosec // of the names above
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("installing %s: %w\n%s", packages, err, output)
	}
	if missing := missingPackages(); len(missing) > 0 {
		return fmt.Errorf("installed %s, but the programs are still not found in %s", packages, os.Getenv("PATH"))
	}
	return nil
}

func missingPackages() []string {
	var missing []string
	for _, tool := range tools {
		if _, err := exec.LookPath(tool.program); err != nil {
			missing = append(missing, tool.debianPackage)
		}
	}
	return missing
}

// printAccess tells how to use the cluster.
func printAccess(c *cluster.Cluster) {
	fmt.Printf("\n  export KUBECONFIG=%s\n", c.Kubeconfig())
	if _, err := exec.LookPath("kubectl"); err == nil {
		fmt.Println("  kubectl get nodes,pods,services -o wide")
	} else {
		fmt.Printf("  alias kubectl='%s kubectl'\n", program("components"))
	}
	for _, node := range c.Nodes() {
		fmt.Printf("  %s  # a shell on %s (%s)\n", enter(node.Namespace()), node.Name(), node.Spec.Labels[siteLabel])
	}
	fmt.Printf("  Logs: %s/logs\n", c.Dir())
}

// enter is the command that opens a shell in a namespace.
func enter(namespace string) string {
	if _, err := exec.LookPath("ip"); err == nil {
		return "ip netns exec " + namespace + " bash"
	}
	return "nsenter --net=/run/netns/" + namespace + " bash"
}

// waitForEnd waits for Ctrl-C, or for a component to fail, which is an error.
func waitForEnd(ctx context.Context, c *cluster.Cluster) error {
	fmt.Println("\nPress Ctrl-C to end it.")
	select {
	case <-ctx.Done():
		return nil
	case err := <-c.Failed():
		return err
	}
}

func stop(c *cluster.Cluster) error {
	fmt.Println("\nStopping the cluster.")
	if err := c.Stop(); err != nil {
		return fmt.Errorf("stopping the cluster: %w", err)
	}
	return nil
}
