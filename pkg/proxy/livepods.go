package proxy

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

func (p *Proxy) upstreamState() livepods.UpstreamState {
	switch {
	case p.view.ServedSnapshot() != nil:
		return livepods.Away
	case !p.facts.IsLive():
		return livepods.Unknown
	case p.upstream.FollowsSlices() && p.facts.Applied(): // the Link notices the return later than the sources do
		return livepods.Followed
	default:
		return livepods.Away
	}
}

// makeLivePods makes the Keeper, if a runtime or an exchange is configured.
func (p *Proxy) makeLivePods() {
	if p.config.Runtime == nil && p.exchange == nil {
		return
	}
	config := livepods.Config{
		NodeName:    p.config.NodeName,
		Facts:       p.facts,
		Upstream:    p.upstreamState,
		Contact:     p.upstream.AsOf,
		Boot:        bootID(),
		Runtime:     p.config.Runtime,
		ReturnGrace: p.config.ReturnGrace,
		Observer:    p.metrics,
	}
	if p.exchange != nil { // a nil pointer would not be a nil Neighbours
		config.Neighbours = p.exchange
	}
	p.livePods = livepods.New(config)
}

// noteBoot notes the machine's boot in the snapshot, once the upstream's state is complete, if no Keeper does.
func (p *Proxy) noteBoot(ctx context.Context) {
	select {
	case <-p.facts.Live():
		p.facts.UpdateNotes(func(n *facts.Notes) { n.PodNotes = livepods.NotesOfBoot(bootID()) })
	case <-ctx.Done():
	}
}

// bootID returns the id of the machine's boot; "" if it cannot be read.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// livePodsDetail describes whose state of this node's pods is used.
func livePodsDetail(s livepods.Status) string {
	var said string
	switch {
	case s.Used && s.Returning:
		said = fmt.Sprintf("cri: %d of this node's pods are shown as the container runtime has them, until the API "+
			"server says the same of them", s.Corrected)
	case s.Used:
		said = fmt.Sprintf("cri: the upstream is away, and this node's pods are shown as the container runtime has "+
			"them, %d of them differently from what the API server said last", s.Corrected)
	case s.Err == nil && s.AsOf.IsZero():
		return "cri: the container runtime has not been asked yet"
	case s.Err == nil:
		return "cri: ok, the container runtime is needed only while the upstream is away"
	default:
		return fmt.Sprintf("cri: the addresses of this node's pods would not be known while the upstream is away: %v",
			s.Err)
	}
	if len(s.Reasons) > 0 {
		said += " (" + strings.Join(s.Reasons, "; ") + ")"
	}
	if s.Err != nil {
		said += fmt.Sprintf("; as of %s, for it cannot be asked now: %v", s.AsOf.UTC().Format(time.RFC3339), s.Err)
	}
	return said
}
