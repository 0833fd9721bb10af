package dns

import (
	"cmp"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// version is a hosts file as its readers can tell it from another one.
type version struct {
	data     string
	inode    uint64
	modified time.Time
}

func (f *fixture) version(node *cluster.Node) version {
	f.Helper()
	data, err := os.ReadFile(node.HostsFile)
	f.Must(err)
	info, err := os.Stat(node.HostsFile)
	f.Must(err)
	return version{string(data), info.Sys().(*syscall.Stat_t).Ino, info.ModTime()}
}

// untouched fails the test if the file was written, even if with the same content.
func (f *fixture) untouched(node *cluster.Node, before version) {
	f.Helper()
	if after := f.version(node); after != before {
		f.Errorf("the hosts file was written: before, %s:\n%s\nafter, %s:\n%s", before.modified, before.data,
			after.modified, after.data)
	}
}

// readyz waits until the daemon answers with this status and says all of this.
func (f *fixture) readyz(node *cluster.Node, status int, says ...string) {
	f.Helper()
	f.Answers(node, "http://127.0.0.1:51007/readyz", status, says...)
}

// alwaysAnswers asks for a site's names all the time until the returned function is called, as always does.
func (f *fixture) alwaysAnswers(node *cluster.Node, addresses []string) (stop func()) {
	f.Helper()
	return f.always(func() error { return f.asSite(node, addresses) })
}

// always asks all the time until the returned function is called, which tells how often it has asked and fails the test
// if an answer was an error.
func (f *fixture) always(ask func() error) (stop func()) {
	f.Helper()
	type count struct {
		asked int
		err   error
	}
	end, counted := make(chan struct{}), make(chan count, 1)
	go func() {
		var c count
		for {
			select {
			case <-end:
				counted <- c
				return
			case <-time.After(between):
				c.asked++
				c.err = cmp.Or(c.err, ask())
			}
		}
	}()
	return func() {
		f.Helper()
		close(end)
		c := <-counted
		f.Logf("asked for all names %d times meanwhile", c.asked)
		if c.err != nil || c.asked == 0 {
			f.Errorf("of %d times, at least once: %v", c.asked, c.err)
		}
	}
}

// TestRebootWhileOffline: the link of a node is cut, packets dropped, and then its power fails. The file has not been
// touched, CoreDNS goes on answering from it, and when the link is back everything is followed: also with a clock that
// was set back meanwhile.
func TestRebootWhileOffline(t *testing.T) {
	f := newFixture(t)
	node, addresses := f.east()
	f.settled(node)

	// The lines of the last run, and foreign ones. Those of other tests, which the file keeps, have other names.
	printer := "printer." + f.namespace + ".example.org"
	f.Must(os.WriteFile(node.HostsFile, []byte("10.9.9.9 "+printer+"\n"+f.version(node).data+"# the end"), 0o600))
	resolvable.Until(t, "the foreign line is answered", func() error {
		return f.answers(node, printer, "A", "10.9.9.9")
	})
	f.readyz(node, http.StatusOK)
	before := f.version(node)
	f.Kept(stateWriteDelay, node)

	f.Must(node.CutLink(f.ctx))
	defer node.RestoreLink(f.ctx)
	f.scale("east", 1) // of which the node hears later
	stop := f.alwaysAnswers(node, addresses)
	time.Sleep(time.Second)
	stop()
	f.untouched(node, before)

	f.Must(node.Reboot(f.ctx))
	f.Eventually("CoreDNS answers after the reboot", func() error { return f.asSite(node, addresses) })
	stop = f.alwaysAnswers(node, addresses)
	f.readyz(node, http.StatusOK, "the API server is away", "snapshot")
	time.Sleep(time.Second)
	stop()
	f.untouched(node, before)

	f.Must(node.RestoreLink(f.ctx))
	f.Eventually("what happened meanwhile is followed", func() error { return f.unknown(node, f.name(1)) })
	f.Must(f.asSite(node, addresses[:1]))
	if err := f.answers(node, printer, "A", "10.9.9.9"); err != nil {
		f.Fatalf("%v; the file is\n%s", err, f.version(node).data)
	}
	f.readyz(node, http.StatusOK)
	if now := f.version(node).data; !strings.HasPrefix(now, "10.9.9.9 "+printer+"\n") ||
		!strings.HasSuffix(now, "# the end") {
		f.Errorf("the foreign lines are not as they were:\n%s", now)
	}
	f.clockSetBack(node, addresses[0])
}

// clockSetBack makes a node's file newer than its clock. CoreDNS, which goes by modification times, is to notice the
// next version all the same, though it is of one size.
func (f *fixture) clockSetBack(node *cluster.Node, address string) {
	f.Helper()
	future := time.Now().Add(48 * time.Hour)
	f.Must(os.Chtimes(node.HostsFile, future, future))
	time.Sleep(time.Second) // CoreDNS looks every 200 ms
	size := len(f.version(node).data)
	other := strings.Replace(address, "10.244.", "10.245.", 1)
	f.setAddress(sites[node.Spec.Name], 0, other)
	f.published(sites[node.Spec.Name], []string{other})
	f.follows("the clock is set back: the next version is noticed",
		func() error { return f.answers(node, f.name(0), "A", other) })
	if now := f.version(node); len(now.data) != size || !now.modified.After(future) {
		f.Errorf("%d bytes, before %d, modified %s", len(now.data), size, now.modified)
	}
}
