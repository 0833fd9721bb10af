package dnshosts

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the process that is killed in the middle of a write (TestKilled), and the daemon whose
// memory is measured (TestMemory).
const killedEnv = "DNSHOSTS_WRITE_FOR_EVER"

func TestMain(m *testing.M) {
	if path := os.Getenv(killedEnv); path != "" {
		if url := os.Getenv(memoryEnv); url != "" {
			runDaemon(url, path)
		}
		writeForEver(path)
	}
	os.Exit(m.Run())
}

func newFile(t *testing.T) *File {
	t.Helper()
	return &File{Path: filepath.Join(t.TempDir(), "hosts")}
}

func (f *File) read(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// write writes and checks whether the file was replaced.
func (f *File) mustWrite(t *testing.T, replaced bool, lines ...string) {
	t.Helper()
	got, err := f.Write(lines)
	if err != nil {
		t.Fatal(err)
	}
	if got != replaced {
		t.Errorf("replaced: %v, want %v", got, replaced)
	}
}

// block is a file's block with these lines.
func block(lines ...string) string {
	return string((&Content{}).Render(lines))
}

const (
	line1 = "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local"
	line2 = "10.0.0.2 demo-0.demo-svc.default.svc.cluster.local"
)

func TestWrite(t *testing.T) {
	f := newFile(t)
	f.mustWrite(t, true) // a file that is not there is made, if only to say that there is nothing
	if got := f.read(t); got != block() {
		t.Errorf("the first file is %q", got)
	}
	f.mustWrite(t, true, line1)
	f.mustWrite(t, false, line1)
	if got := f.read(t); got != block(line1) {
		t.Errorf("got %q", got)
	}
	// Another process, and nothing to do.
	again := &File{Path: f.Path}
	before := inode(t, f.Path)
	again.mustWrite(t, false, line1)
	if inode(t, f.Path) != before {
		t.Error("the file was replaced without a change")
	}
	if entries, _ := os.ReadDir(filepath.Dir(f.Path)); len(entries) != 1 {
		t.Errorf("files are left: %v", entries)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestForeignLinesStay(t *testing.T) {
	f := newFile(t)
	const before, after = "127.0.0.1 localhost\n# mine\n", "10.1.1.1 printer\t# no newline at the end"
	for _, present := range []string{before + block("gone") + after, before + block() + after} {
		writeFile(t, f.Path, present)
		f.mustWrite(t, true, line1)
		if got := f.read(t); got != before+block(line1)+after {
			t.Errorf("got %q", got)
		}
	}
	// Someone edits the file, and someone breaks the block.
	if err := os.WriteFile(f.Path,
		[]byte("10.2.2.2 another\n"+before+strings.Replace(block(line1), "10.0.0.1", "6.6.6.6", 1)+after),
		0o600); err != nil {
		t.Fatal(err)
	}
	if !f.Changed() {
		t.Error("the change is not noticed")
	}
	f.mustWrite(t, true, line1)
	if got := f.read(t); got != "10.2.2.2 another\n"+before+block(line1)+after {
		t.Errorf("got %q", got)
	}
	if f.Changed() {
		t.Error("the file is said to be changed after the write")
	}
	if err := os.Remove(f.Path); err != nil {
		t.Fatal(err)
	}
	if !f.Changed() {
		t.Error("the removal is not noticed")
	}
	f.mustWrite(t, true, line1)
}

// TestChangedMeanwhile: an edit between the reading and the replacing is not lost.
func TestChangedMeanwhile(t *testing.T) {
	f := newFile(t)
	f.mustWrite(t, true, line1)
	edits := 0
	f.beforeRename = func() {
		if edits < 2 {
			edits++
			if err := os.WriteFile(f.Path, []byte(fmt.Sprintf("10.2.2.%d edited\n", edits)+block(line1)),
				0o600); err != nil {
				t.Error(err)
			}
		}
	}
	f.mustWrite(t, true, line2)
	if got := f.read(t); got != "10.2.2.2 edited\n"+block(line2) {
		t.Errorf("got %q", got)
	}
}

// TestModificationTime: CoreDNS' hosts plugin reads again only if size or modification time differ.
func TestModificationTime(t *testing.T) {
	f := newFile(t)
	seen := map[time.Time]bool{}
	for i := range 50 {
		f.mustWrite(t, true, []string{line1, line2}[i%2]) // of one size
		info, err := os.Stat(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if seen[info.ModTime()] {
			t.Fatalf("version %d has the modification time of an older one", i)
		}
		seen[info.ModTime()] = true
	}
	// A clock that is set back, and then is where it was when the file was last written.
	future := time.Now().Add(24 * time.Hour)
	if err := os.Chtimes(f.Path, future, future); err != nil {
		t.Fatal(err)
	}
	before := future
	for i := range 3 {
		f.mustWrite(t, true, []string{line1, line2}[i%2])
		info, err := os.Stat(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		if !info.ModTime().After(before) {
			t.Errorf("modified %s, not after the older version, %s", info.ModTime(), before)
		}
		before = info.ModTime()
	}
}

func TestModeStays(t *testing.T) {
	f := newFile(t)
	f.mustWrite(t, true, line1)
	mode := func() fs.FileMode {
		info, err := os.Stat(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if mode() != 0o644 {
		t.Errorf("a new file has mode %s, which CoreDNS may not read", mode())
	}
	if err := os.Chmod(f.Path, 0o640); err != nil {
		t.Fatal(err)
	}
	f.mustWrite(t, true, line2)
	if mode() != 0o640 {
		t.Errorf("mode %s, it was 0640", mode())
	}
}

// TestSymbolicLinks: of links to a file that is not there yet, all stay.
func TestSymbolicLinks(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "c")
	for from, to := range map[string]string{"hosts": "b", "b": target, "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	f := &File{Path: filepath.Join(dir, "hosts")}
	f.mustWrite(t, true, line1) // dangling at first
	f.mustWrite(t, true, line2)
	for path, want := range map[string]fs.FileMode{
		f.Path: fs.ModeSymlink, filepath.Join(dir, "b"): fs.ModeSymlink, target: 0,
	} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Type() != want {
			t.Errorf("%s is %v, %v", path, info.Mode(), err)
		}
	}
	if got := f.read(t); got != block(line2) {
		t.Errorf("got %q", got)
	}
	if _, err := (&File{Path: filepath.Join(dir, "loop")}).Write([]string{line1}); err == nil {
		t.Error("a link to itself was written")
	}
}

// TestCarriageReturns: an editor has saved the whole file with CRLF. The names of pods that go then are not answered
// any more.
func TestCarriageReturns(t *testing.T) {
	f := newFile(t)
	f.mustWrite(t, true, line1)
	writeFile(t, f.Path, strings.ReplaceAll("127.0.0.1 localhost\n"+f.read(t), "\n", "\r\n"))
	f.mustWrite(t, true, line2)
	f.mustWrite(t, true)
	if got := f.read(t); got != "127.0.0.1 localhost\r\n"+block() {
		t.Errorf("got %q", got)
	}
}

// TestOverwritten: another daemon writes the same file. Foreign lines are nobody's rivals.
func TestOverwritten(t *testing.T) {
	f := newFile(t)
	other := &File{Path: f.Path}
	f.mustWrite(t, true, line1)
	writeFile(t, f.Path, foreignHead+f.read(t))
	f.mustWrite(t, false, line1)
	if f.overwritten != 0 {
		t.Errorf("a foreign line counts as an overwrite")
	}
	for range 3 {
		other.mustWrite(t, true, line2)
		f.mustWrite(t, true, line1)
	}
	if f.overwritten != 3 {
		t.Errorf("%d overwrites are counted of 3", f.overwritten)
	}
}

// TestFailuresKeepTheFile: what cannot be replaced stays, and the error says why. TestDiskFails has a full disk and one
// that is read-only, TestDirectoryComesLate a missing directory.
func TestFailuresKeepTheFile(t *testing.T) {
	t.Run("not a file", func(t *testing.T) {
		f := newFile(t)
		if err := os.Mkdir(f.Path, 0o750); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]string{line1}); err == nil || !strings.Contains(err.Error(), "is a directory") {
			t.Errorf("got %v", err)
		}
		if _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("mounted alone", func(t *testing.T) {
		f := newFile(t)
		f.mustWrite(t, true, line1)
		source := filepath.Join(t.TempDir(), "source")
		writeFile(t, source, block(line1))
		mountedUntilEnd(t, f.Path, syscall.Mount(source, f.Path, "", syscall.MS_BIND, ""))
		if _, err := f.Write([]string{line2}); err == nil || !strings.Contains(err.Error(), "mount its directory") {
			t.Errorf("got %v", err)
		}
		if got := f.read(t); got != block(line1) {
			t.Errorf("the old file is %q", got)
		}
	})
}

// mounted is a file on a file system of its own.
func mounted(t *testing.T, kind, data string) *File {
	t.Helper()
	f := newFile(t)
	at := filepath.Dir(f.Path)
	mountedUntilEnd(t, at, syscall.Mount("none", at, kind, 0, data))
	return f
}

// mountedUntilEnd skips the test if mounting failed, and unmounts at its end.
func mountedUntilEnd(t *testing.T, target string, err error) {
	t.Helper()
	if err != nil {
		t.Skipf("mounting takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(target, 0); err != nil {
			t.Errorf("unmounting %s: %v", target, err)
		}
	})
}

// version is the content of version i: as many lines as to be written in several pieces, all of them saying i, and
// of a number that differs between versions.
func version(i int) []string {
	lines := make([]string, 200+i%100)
	for n := range lines {
		lines[n] = fmt.Sprintf("10.%d.%d.%d demo-%d.demo-svc.default.svc.cluster.local",
			i>>16&0xff, i>>8&0xff, i&0xff, n)
	}
	return lines
}

const foreignHead, foreignTail = "127.0.0.1 localhost\n", "10.1.1.1 printer\n"

// versionOf tells which version a file is; an error if it is a part of one, or a mixture.
func versionOf(data string) (int, error) {
	content := Parse([]byte(data))
	if content.Before != foreignHead || content.After != foreignTail || len(content.Block) == 0 {
		return 0, fmt.Errorf("not whole: %d bytes, before %q, after %q, %d lines",
			len(data), content.Before, content.After, len(content.Block))
	}
	address, _, _ := strings.Cut(content.Block[0], " ")
	var i int
	for part := range strings.SplitSeq(address, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return 0, err
		}
		i = i<<8 | n
	}
	i &= 0xffffff
	if !slices.Equal(content.Block, version(i)) || data != foreignHead+block(version(i)...)+foreignTail {
		return 0, fmt.Errorf("a mixture: begins as version %d, with %d lines", i, len(content.Block))
	}
	return i, nil
}

// TestReadersSeeWholeFiles reads the file in a tight loop while many versions are written.
func TestReadersSeeWholeFiles(t *testing.T) {
	const versions = 150
	f := newFile(t)
	writeFile(t, f.Path, foreignHead+block(version(0)...)+foreignTail)
	done := make(chan struct{})
	var readers sync.WaitGroup
	var mu sync.Mutex
	reads, different := 0, map[int]bool{}
	for range 2 {
		readers.Go(func() {
			for latest := 0; ; {
				data, err := os.ReadFile(f.Path)
				if err != nil {
					t.Errorf("the file is not there: %v", err)
					return
				}
				i, err := versionOf(string(data))
				if err != nil || i < latest {
					t.Errorf("after version %d: version %d, %v", latest, i, err)
					return
				}
				latest = i
				mu.Lock()
				reads++
				different[i] = true
				mu.Unlock()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range versions {
		f.mustWrite(t, true, version(i+1)...)
	}
	close(done)
	readers.Wait()
	t.Logf("%d versions written, %d reads, %d different versions seen, none partial", versions, reads, len(different))
}

// writeForEver writes version after version until it is killed, and pauses before each file is renamed, so that it is
// killed there too. It says on standard output when a version is written.
func writeForEver(path string) {
	f := &File{Path: path}
	f.beforeRename = func() { time.Sleep(time.Duration(rand.IntN(600)) * time.Microsecond) }
	f.RemoveLeftovers()
	present, err := f.Load()
	if err != nil {
		panic(err)
	}
	i, err := versionOf(foreignHead + block(present...) + foreignTail)
	if err != nil {
		panic(err)
	}
	for {
		i++
		if _, err := f.Write(version(i)); err != nil {
			panic(err)
		}
		if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
			panic(err)
		}
	}
}

// TestKilled kills a writing process with SIGKILL again and again, at random points of a write. The file must be
// the old or the new one, and the next process must find its way and remove what is left.
func TestKilled(t *testing.T) {
	const kills = 60
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := newFile(t)
	writeFile(t, f.Path, foreignHead+block(version(0)...)+foreignTail)
	latest, interrupted := 0, 0
	for range kills {
		process := exec.Command(self)
		process.Env = append(os.Environ(), killedEnv+"="+f.Path)
		var output strings.Builder
		process.Stderr = &output
		written, err := process.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		// However slow the machine is, the process is killed in the writes after its first one.
		_, _ = written.Read(make([]byte, 1))
		time.Sleep(time.Duration(rand.IntN(10000)) * time.Microsecond)
		_ = process.Process.Kill()
		if err := process.Wait(); err == nil || process.ProcessState.Exited() {
			t.Fatalf("the writer ended by itself: %v\n%s", err, output.String())
		}
		i, err := versionOf(f.read(t))
		if err != nil || i < latest {
			t.Fatalf("after version %d: version %d, %v", latest, i, err)
		}
		latest = i
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(f.Path), tempPrefix+"*"))
		if len(left) > 1 {
			t.Fatalf("leftovers of several processes: %v", left)
		}
		interrupted += len(left)
	}
	f.RemoveLeftovers()
	if entries, _ := os.ReadDir(filepath.Dir(f.Path)); len(entries) != 1 {
		t.Errorf("leftovers stay: %v", entries)
	}
	if interrupted == 0 || latest == 0 {
		t.Errorf("%d of %d kills were in the middle of a write, %d versions were written: the test proves nothing",
			interrupted, kills, latest)
	}
	t.Logf("%d kills, %d in the middle of a write, %d versions", kills, interrupted, latest)
}
