package kubeadm

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	cgroups = "/sys/fs/cgroup"
	// unified is the only hierarchy of a machine with cgroups of version 2, as a directory below cgroups.
	unified = "."
	// leaf is the cgroup of a node's own processes where there is only one hierarchy: a cgroup with children that have
	// controllers can have no processes there.
	leaf = "machine"
)

// cgroupHierarchies are the directories of the hierarchies below cgroups: one of version 2, or several of version 1.
func cgroupHierarchies() ([]string, error) {
	var filesystem unix.Statfs_t
	if err := unix.Statfs(cgroups, &filesystem); err != nil {
		return nil, fmt.Errorf("%s: %w", cgroups, err)
	}
	if filesystem.Type == unix.CGROUP2_SUPER_MAGIC {
		return []string{unified}, nil
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer mounts.Close()
	var found []string
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		_, kind, _ := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(lines.Text()); strings.HasPrefix(kind, "cgroup ") &&
			filepath.Dir(fields[4]) == cgroups {
			found = append(found, filepath.Base(fields[4]))
		}
	}
	if len(found) == 0 {
		return nil, errors.New("this machine mounts no hierarchies of cgroups at or below " + cgroups)
	}
	return found, nil
}

// cgroupMounts are the hierarchies in a node's root.
func cgroupMounts(root string) ([]mount, error) {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return nil, err
	}
	if hierarchies[0] == unified {
		return []mount{{"cgroup", filepath.Join(root, cgroups), "cgroup2", 0, ""}}, nil
	}
	mounts := []mount{{"cgroup", filepath.Join(root, cgroups), "tmpfs", 0, "mode=0755"}}
	for _, controller := range hierarchies {
		data := controller
		if controller == "systemd" {
			data = "none,name=systemd"
		}
		mounts = append(mounts, mount{"cgroup", filepath.Join(root, cgroups, controller), "cgroup", 0, data})
	}
	return mounts, nil
}

// joinCgroups puts this process into a cgroup of this name in every hierarchy.
func joinCgroups(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(cgroups, hierarchy, name)
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as any cgroup
			return fmt.Errorf("creating a cgroup: %w", err)
		}
		switch hierarchy {
		case unified:
			err = delegate(cgroups)
		case "cpuset":
			err = copyProcessors(dir)
		}
		if err != nil {
			return err
		}
		if err := join(dir); err != nil {
			return err
		}
	}
	return nil
}

// join puts this process into a cgroup.
func join(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o600); err != nil {
		return fmt.Errorf("joining %s: %w", dir, err)
	}
	return nil
}

// delegate gives all controllers that a cgroup has to its children.
func delegate(dir string) error {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")) //nolint:gosec // of the kernel
	if err != nil {
		return fmt.Errorf("reading the controllers: %w", err)
	}
	for _, controller := range strings.Fields(string(controllers)) {
		file := filepath.Join(dir, "cgroup.subtree_control")
		err := os.WriteFile(file, []byte("+"+controller), 0o600) //nolint:gosec // of the kernel
		if err != nil {
			return fmt.Errorf("%s: delegating the controller %s: %w", dir, controller, err)
		}
	}
	return nil
}

// leaveTo has this process leave a node's cgroup for its leaf, where there is only one hierarchy.
func leaveTo(dir string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil || hierarchies[0] != unified {
		return err
	}
	dir = filepath.Join(dir, leaf)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as any cgroup
		return fmt.Errorf("creating a cgroup: %w", err)
	}
	return join(dir)
}

// copyProcessors lets a new cgroup have processes, which takes to know the processors.
func copyProcessors(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file)) //nolint:gosec // of the kernel
		if err != nil {
			return fmt.Errorf("reading the processors: %w", err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o600); err != nil { //nolint:gosec // of the kernel
			return fmt.Errorf("setting the processors: %w", err)
		}
	}
	return nil
}

// removeCgroups removes the cgroups of a node, which must have no process any more.
func removeCgroups(name string) error {
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		if err := removeCgroup(filepath.Join(cgroups, hierarchy, name)); err != nil {
			return err
		}
	}
	return nil
}

func removeCgroup(dir string) error {
	children, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, child := range children {
		if child.IsDir() {
			if err := removeCgroup(filepath.Join(dir, child.Name())); err != nil {
				return err
			}
		}
	}
	for begin := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Since(begin) > 10*time.Second { // its processes are ending
			return fmt.Errorf("removing cgroup %s: %w", dir, err)
		}
	}
}
