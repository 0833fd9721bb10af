package kubeadm

import (
	"bytes"
	"debug/elf"
	"debug/gosym"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/application-grid/application-grid/pkg/program/atomicfile"
)

// clockDir is where a node has programs that take the place of others, for another clock.
const clockDir = "/opt/clock"

// withClock starts program %[2]s in a time namespace whose CLOCK_BOOTTIME is %[1]d seconds ahead of CLOCK_REALTIME.
const withClock = `#!/bin/sh
read -r up idle </proc/uptime
exec unshare --time --boottime=$(($(date +%%s) + %[1]d - ${up%%.*})) --fork --kill-child %[2]s "$@"
`

// SetClock gives the node's containerd, kubelet and lite-apiserver, when they start next, a clock that is ahead of the
// machine's, or behind it; 0 ends that. They are the programs of all nodes but for one byte: time.Now reads
// CLOCK_BOOTTIME, which a time namespace can set (time_namespaces(7)), where it read CLOCK_REALTIME, which no namespace
// can. The times of files stay the machine's.
func (n *Node) SetClock(ahead time.Duration) error {
	lite := filepath.Join(n.disk, clockDir, "lite-apiserver")
	if ahead == 0 {
		return errors.Join(copyFile(lite+".original", filepath.Join(n.disk, LiteProgram)),
			os.RemoveAll(filepath.Join(n.disk, clockDir)))
	}
	if err := os.MkdirAll(filepath.Join(n.disk, clockDir, "programs"), 0o755); err != nil { //nolint:gosec // programs
		return err
	}
	if _, err := os.Stat(lite + ".original"); err != nil {
		if err := copyFile(filepath.Join(n.disk, LiteProgram), lite+".original"); err != nil {
			return err
		}
	}
	bin := n.cluster.options.Bin
	const shim = "containerd-shim-runc-v2" // containerd starts it, in its namespaces
	if err := readBootTime(filepath.Join(bin, shim), filepath.Join(n.disk, clockDir, shim)); err != nil {
		return err
	}
	for from, starter := range map[string]string{
		filepath.Join(bin, "components"): filepath.Join(clockDir, "kubelet"),
		filepath.Join(bin, "containerd"): filepath.Join(clockDir, "containerd"),
		lite + ".original":               LiteProgram,
	} {
		program := filepath.Join(clockDir, "programs", filepath.Base(starter))
		if err := readBootTime(from, filepath.Join(n.disk, program)); err != nil {
			return err
		}
		script := fmt.Appendf(nil, withClock, int(ahead.Seconds()), program)
		if err := atomicfile.Write(filepath.Join(n.disk, starter), 0o755, script); err != nil {
			return err
		}
	}
	return nil
}

// readBootTime copies a Go program for amd64. In the copy time.Now reads CLOCK_BOOTTIME.
func readBootTime(from, to string) error {
	content, err := os.ReadFile(from) //nolint:gosec // a program of the test
	if err != nil {
		return err
	}
	file, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	lines, text := file.Section(".gopclntab"), file.Section(".text")
	if lines == nil || text == nil {
		return fmt.Errorf("%s is no Go program", from)
	}
	table, err := lines.Data()
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	symbols, err := gosym.NewTable(nil, gosym.NewLineTable(table, text.Addr))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	now := symbols.LookupFunc("time.now")
	if now == nil {
		return fmt.Errorf("%s has no time.now", from)
	}
	code := content[text.Offset+now.Entry-text.Addr : text.Offset+now.End-text.Addr]
	const realtime, boottime = "\xbf\x00\x00\x00\x00", "\xbf\x07\x00\x00\x00" // MOVL $0, DI and MOVL $7, DI
	if bytes.Count(code, []byte(realtime)) != 1 {
		return fmt.Errorf("time.now of %s does not read CLOCK_REALTIME once: %x", from, code)
	}
	copy(code, bytes.Replace(code, []byte(realtime), []byte(boottime), 1))
	return atomicfile.Write(to, 0o755, content)
}
