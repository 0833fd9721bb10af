package kubeadm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// kubeletConfig is written by kubeadm; before that there is nothing for a kubelet to do.
	kubeletConfig = "/var/lib/kubelet/config.yaml"
	// KubeletArguments sets KUBELET_EXTRA_ARGS, as with the packages of Kubernetes for Debian.
	KubeletArguments = "/etc/default/kubelet"
	// LiteConfig sets LITE_APISERVER_ARGS. A node that has it starts LiteProgram.
	LiteConfig = "/etc/default/lite-apiserver"
	// LiteProgram is lite-apiserver.
	LiteProgram = "/opt/application-grid/lite-apiserver"
	// K3sConfig is the configuration of k3s. A node that has it starts k3s, which starts containerd and the
	// kubelet itself.
	K3sConfig = "/etc/rancher/k3s/config.yaml"
	// PowerOn is the command by which a program runs RunPowerOn.
	PowerOn = "power-on"
	// Machine is the command by which a program runs RunMachine.
	Machine = "machine"
)

// RunPowerOn is the outer process of a node, in the node's network namespace: it joins cgroups of the node's own and
// starts the machine in namespaces of its own. The machine dies with it. disk is the node's, name its host name.
func RunPowerOn(disk, name string) error {
	runtime.LockOSThread() // the machine dies with the thread that has started it
	cgroup := filepath.Base(filepath.Dir(disk)) + "-" + name
	if err := joinCgroups(cgroup); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	machine := exec.Command(program, Machine, disk, name) //nolint:gosec,noctx // this program; it ends with this process
	machine.Stdout, machine.Stderr = os.Stdout, os.Stderr
	machine.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := machine.Start(); err != nil {
		return err
	}
	if err := leaveTo(filepath.Join(cgroups, cgroup)); err != nil {
		return errors.Join(err, machine.Process.Kill())
	}
	return machine.Wait()
}

// RunMachine is process 1 of a node. It builds the node's root of its disk, enters it, and keeps containerd running,
// and the kubelet as soon as kubeadm has configured it. It does not return unless it fails.
func RunMachine(disk, name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := enterRoot(disk); err != nil {
		return err
	}
	if err := leaveTo(cgroups); err != nil {
		return err
	}
	return superviseServices()
}

// mount is one line of a node's fstab.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

// enterRoot makes the node's root: the host's programs with a layer of its own on top, its own /etc, /var, /opt and
// /data from its disk, and an empty /run and /tmp.
func enterRoot(disk string) error {
	root := filepath.Join(disk, "root")
	hierarchies, err := cgroupMounts(root)
	if err != nil {
		return err
	}
	on := func(elements ...string) string { return filepath.Join(append([]string{root}, elements...)...) }
	mounts := slices.Concat([]mount{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		{"root", root, "tmpfs", 0, "mode=0755"},
		{"usr", on("usr"), "overlay", 0, fmt.Sprintf("lowerdir=/usr,upperdir=%s/usr,workdir=%s/work", disk, disk)},
		{filepath.Join(disk, "etc"), on("etc"), "", unix.MS_BIND, ""},
		{filepath.Join(disk, "var"), on("var"), "", unix.MS_BIND, ""},
		{filepath.Join(disk, "opt"), on("opt"), "", unix.MS_BIND, ""},
		{filepath.Join(disk, "data"), on("data"), "", unix.MS_BIND, ""},
		{"run", on("run"), "tmpfs", 0, "mode=0755"},
		{"tmp", on("tmp"), "tmpfs", 0, "mode=1777"},
		{"proc", on("proc"), "proc", 0, ""},
		{"sys", on("sys"), "sysfs", 0, ""},
		{"/dev", on("dev"), "", unix.MS_BIND | unix.MS_REC, ""},
	}, hierarchies, []mount{
		// Its own programs, in directories of the host's.
		{filepath.Join(disk, "..", "bin"), on("opt", "bin"), "", unix.MS_BIND, ""},
	})
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil { //nolint:gosec // as in any root
			return err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mounting %s: %w", m.target, err)
		}
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.Symlink("usr/"+dir, on(dir)); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(on("old"), 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, on("old")); err != nil {
		return fmt.Errorf("entering the root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's root: %w", err)
	}
	// The kubelet's mounts have to reach containers.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// service is a program that process 1 keeps running.
type service struct {
	command string
	// needs is a file without which it is not started.
	needs string
	pid   int
	// since is when it was started last.
	since time.Time
}

// superviseServices starts the services, and again when they end, and takes in the processes that have lost their
// parent, as process 1 has to.
func superviseServices() error {
	services := []*service{
		{command: "exec containerd", needs: "/etc/containerd/config.toml"},
		{command: "exec k3s", needs: K3sConfig},
		{command: "exec " + LiteProgram + " $LITE_APISERVER_ARGS", needs: LiteConfig},
		{command: "exec kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf" +
			" --kubeconfig=/etc/kubernetes/kubelet.conf --config=" + kubeletConfig +
			" $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS", needs: kubeletConfig},
	}
	for ; ; time.Sleep(100 * time.Millisecond) {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				break
			}
			for _, s := range services {
				if s.pid == pid {
					s.pid = 0
				}
			}
		}
		for _, s := range services {
			if s.pid != 0 || time.Since(s.since) < time.Second {
				continue
			}
			if _, err := os.Stat(s.needs); err != nil {
				continue
			}
			if err := s.start(); err != nil {
				return err
			}
		}
	}
}

func (s *service) start() error {
	name := filepath.Base(strings.Fields(s.command)[1])
	log, err := os.OpenFile("/var/log/"+name+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // one of four names
	if err != nil {
		return err
	}
	defer log.Close()
	script := "set -a; for f in /var/lib/kubelet/kubeadm-flags.env " + KubeletArguments + " " + LiteConfig +
		"; do [ ! -e $f ] || . $f; done; " + s.command
	process, err := os.StartProcess("/bin/sh", []string{"sh", "-c", script}, &os.ProcAttr{
		Env:   []string{"PATH=" + clockDir + ":" + machinePath},
		Files: []*os.File{nil, log, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("starting %s: %w", name, err)
	}
	s.pid, s.since = process.Pid, time.Now()
	return nil
}
