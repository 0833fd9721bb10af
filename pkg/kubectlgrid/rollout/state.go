package rollout

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// barWidth is how many characters the progress bar has.
const barWidth = 40

// others is the row of the units that no wave names.
const others = "<others>"

// State is how far a rollout has come.
type State struct {
	// Rows are a table of the waves, with a header.
	Rows [][]string
	// Summary is a line that says the rest.
	Summary string
	// Updated and Units are how many units have the change, of how many.
	Updated, Units int
	// Done is set if the rollout is complete. Failed is why it does not go on by itself; empty if it does.
	Done   bool
	Failed string
}

// State returns how far the rollout has come.
func (g *Grid) State() (State, error) {
	spec, status := g.spec(), g.status()
	if spec.Rollout == nil {
		return State{}, errNoRollout
	}
	if status.Rollout == nil || status.ObservedGeneration < g.Object.GetGeneration() {
		return State{Summary: "Waiting for the controller to see the change of " + g.String()}, nil
	}
	r := status.Rollout
	state := State{Rows: [][]string{{"WAVE", "UNITS", "UPDATED", "READY", "FAILED", "DEFERRED", "STATE"}}}
	for _, wave := range r.Waves {
		name := wave.Name
		if name == "" {
			name = others
		}
		row := []string{name}
		for _, n := range []int32{wave.Units, wave.Updated, wave.Ready, wave.Failed, wave.Deferred} {
			row = append(row, strconv.Itoa(int(n)))
		}
		state.Rows = append(state.Rows, append(row, string(wave.State)))
		state.Updated += int(wave.Updated)
		state.Units += int(wave.Units)
	}
	state.Summary = fmt.Sprintf("%s: %s", status.UpdateRevision, r.Phase)
	if r.Wave != "" {
		state.Summary += ", wave " + r.Wave
	}
	if r.Message != "" {
		state.Summary += ": " + r.Message
	}
	switch r.Phase {
	case v1.RolloutComplete:
		state.Done = true
	case v1.RolloutHalted, v1.RolloutRolledBack:
		state.Failed = state.Summary
	default:
	}
	return state, nil
}

// Err is why the rollout of a grid does not go on by itself; nil if it does, or is complete.
func (s State) Err(g *Grid) error {
	if s.Failed == "" {
		return nil
	}
	return fmt.Errorf("%s: %w", g, errors.New(s.Failed))
}

// Printer prints states. A state that looks like the one before is not printed again.
type Printer struct {
	Out io.Writer
	// Live is set if Out is a terminal where each state is to replace the one before. There is a progress bar then.
	Live bool

	last  string
	lines int
}

// Print prints a state.
func (p *Printer) Print(state State) error {
	var b strings.Builder
	if len(state.Rows) > 0 {
		if err := output.NewPrinter(&b).Print(state.Rows...); err != nil {
			return err
		}
	}
	if p.Live {
		b.WriteString(bar(state))
	}
	b.WriteString(state.Summary + "\n")
	text := b.String()
	if text == p.last {
		return nil
	}
	before := ""
	if p.Live && p.lines > 0 {
		before = fmt.Sprintf("\x1b[%dA\x1b[J", p.lines)
	}
	p.last, p.lines = text, strings.Count(text, "\n")
	if _, err := io.WriteString(p.Out, before+text); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// bar is the progress in a line.
func bar(state State) string {
	if state.Units == 0 {
		return ""
	}
	full := barWidth * state.Updated / state.Units
	return fmt.Sprintf("[%s%s] %d/%d\n", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), state.Updated,
		state.Units)
}
