package proxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/follow/upstream"
)

// usesHub reports whether there is a way by a hub.
func (p *Proxy) usesHub() bool {
	return p.config.Hub.Mode != "" && p.config.Hub.Mode != upstream.HubOff
}

// errOwnShare says what a hub does not give.
var errOwnShare = errors.New("this wrapper is given its own node's share only, by the hub: another site's endpoints " +
	"are not known here; ask one with --hub=off")

// ownOnly is a filters.Viewing's OwnOnly.
func (p *Proxy) ownOnly() error {
	if p.upstream.Way().Hub {
		return errOwnShare
	}
	return nil
}

// changeWay is called before another way is followed. What sites were shown of the whole cluster is not to vanish from
// their view little by little.
func (p *Proxy) changeWay(next upstream.Way) {
	if next.Hub {
		p.sites.EndAll()
	}
}

// wayLine says which way is followed, for /readyz.
func (p *Proxy) wayLine() string {
	way := p.upstream.Way()
	switch {
	case way.Hub && p.config.Hub.Mode == upstream.HubRequire:
		return "hub: this node's share is followed (--hub=require)"
	case way.Hub && way.Reason != nil:
		return fmt.Sprintf("hub: away, and the API server is not followed in its place: %v", way.Reason)
	case way.Hub:
		return "hub: this node's share is followed since " + way.Since.UTC().Format(time.RFC3339)
	default:
		return fmt.Sprintf("hub: not in use since %s, the API server is followed: %v",
			way.Since.UTC().Format(time.RFC3339), way.Reason)
	}
}

// memoryRoom is how many bytes more this process may take: the rest of its control group's limit; 0 if nothing bounds
// it.
func memoryRoom() int64 {
	directory := "/sys/fs/cgroup"
	if own, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		if _, path, found := strings.Cut(strings.TrimSpace(string(own)), "0::"); found {
			directory += path
		}
	}
	read := func(file string) (int64, error) {
		content, err := os.ReadFile(filepath.Join(directory, file)) //nolint:gosec // a file of the kernel
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	}
	limit, err := read("memory.max") // "max" is no number
	if err != nil {
		return 0
	}
	used, err := read("memory.current")
	if err != nil {
		return 0
	}
	return max(limit-used, 1)
}
