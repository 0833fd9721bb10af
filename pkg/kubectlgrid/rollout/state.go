package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// barWidth is how many characters the progress bar has.
const barWidth = 40

// notReconciled are the reasons of the condition Ready with which nothing of the present spec is applied. The status of
// the rollout is about an earlier spec then.
var notReconciled = []string{v1.ReasonInvalidKey, v1.ReasonNotAllowed, v1.ReasonMassRemoval}

// ofSites are the reasons of the condition Degraded with which the grid is reconciled.
var ofSites = []string{v1.ReasonSitesFailed, v1.ReasonSitesStalled, v1.ReasonMassRemoval, v1.ReasonRolloutHalted}

// ErrPerson means that a rollout waits for a person.
var ErrPerson = errors.New("a person is needed")

// State is the progress of a rollout.
type State struct {
	// Rows are a table of the waves, with a header.
	Rows [][]string
	// Summary is a line with the rest.
	Summary string
	// Warnings are lines about waves that select no site. A rollout waits there for a person.
	Warnings []string
	// Updated is how many of the Sites have the change.
	Updated, Sites int
	// Done is set if the rollout is complete. Failed is set if sites have failed, so that it does not continue by
	// itself.
	Done, Failed bool
	// Waits is set if it waits for a person. Command is what continues it; empty if no command does, or none is
	// needed.
	Waits   bool
	Command string
}

// State returns the progress of the rollout.
func (g *Grid) State() (State, error) {
	spec, status := g.spec(), g.status()
	if spec.Rollout == nil {
		return State{}, errNoRollout
	}
	if ready := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); ready != nil &&
		ready.ObservedGeneration == g.Object.GetGeneration() && slices.Contains(notReconciled, ready.Reason) {
		return State{Summary: ready.Reason + ": " + ready.Message, Waits: true}, nil
	}
	problem := ""
	if degraded := meta.FindStatusCondition(status.Conditions, v1.ConditionDegraded); degraded != nil &&
		degraded.Status == metav1.ConditionTrue && degraded.ObservedGeneration == g.Object.GetGeneration() &&
		!slices.Contains(ofSites, degraded.Reason) {
		problem = fmt.Sprintf("; the controller cannot reconcile it: %s: %s", degraded.Reason, degraded.Message)
	}
	if status.Rollout == nil || status.ObservedGeneration < g.Object.GetGeneration() {
		return State{Summary: "Waiting for the controller to see the change of " + g.String() + problem}, nil
	}
	r := status.Rollout
	state := State{Rows: [][]string{
		{"WAVE", "SITES", "UPDATED", "READY", "PROVEN", "FAILED", "SUSPECTS", "DEFERRED", "STATE"},
	}}
	for _, wave := range r.Waves {
		row := []string{cmp.Or(wave.Name, output.Others)}
		for _, n := range []int32{
			wave.Sites, wave.Updated, wave.Ready, wave.Proven, wave.Failed, wave.Suspects, wave.Deferred,
		} {
			row = append(row, strconv.Itoa(int(n)))
		}
		state.Rows = append(state.Rows, append(row, string(wave.State)))
		if wave.Sites == 0 && slices.ContainsFunc(spec.Rollout.Waves, func(w v1.Wave) bool {
			return w.Name == wave.Name && w.Sites != nil
		}) {
			state.Warnings = append(state.Warnings, fmt.Sprintf("Wave %s selects no site, so a rollout waits there "+
				"for an approval: its names have to be values of the label %s, or its nodeSelector has to match nodes.",
				wave.Name, spec.GridUniqKey))
		}
		state.Updated += int(wave.Updated)
		state.Sites += int(wave.Sites)
	}
	state.Summary = fmt.Sprintf("%s: %s", status.UpdateRevision, r.Phase)
	if r.Wave != "" {
		state.Summary += ", wave " + r.Wave
	}
	if r.Message != "" {
		state.Summary += ": " + r.Message
	}
	state.Summary += problem
	g.judge(&state)
	return state, nil
}

// judge sets whether the rollout continues by itself. It does if the controller has only not seen a person's answer
// yet.
func (g *Grid) judge(state *State) {
	r := g.status().Rollout
	halted := r.HaltTime != nil && !isResumed(g.Object)
	switch r.Phase {
	case v1.RolloutComplete:
		// Sites that failed after completion stop the deferred ones.
		state.Done, state.Waits, state.Failed = !halted, halted, halted
	case v1.RolloutHalted, v1.RolloutOutage:
		state.Waits, state.Failed = halted, halted && r.Phase == v1.RolloutHalted
	case v1.RolloutRolledBack:
		state.Failed = halted || r.HaltTime == nil
	case v1.RolloutPaused:
		state.Waits = true
	case v1.RolloutAwaitingApproval:
		state.Waits = !isApproved(g.Object)
	default:
	}
	switch {
	case state.Waits && r.Phase == v1.RolloutAwaitingApproval && r.Awaits != "":
		state.Command = "kubectl grid rollout approve " + g.Ref()
	case state.Waits && r.Phase != v1.RolloutAwaitingApproval:
		state.Command = "kubectl grid rollout resume " + g.Ref()
	}
}

// Err returns why the rollout does not continue by itself; nil if it does, or is complete.
func (s State) Err() error {
	switch {
	case s.Waits:
		return fmt.Errorf("%w: %s", ErrPerson, s.Summary)
	case s.Failed:
		return errors.New(s.Summary)
	}
	return nil
}

// Printer prints states. A state that looks like the one before is not printed again.
type Printer struct {
	Out io.Writer
	// Live is set if Out is a terminal on which each state replaces the one before. A progress bar is printed then.
	Live bool

	last string
}

// Print prints a state.
func (p *Printer) Print(state State) error {
	var b strings.Builder
	if len(state.Rows) > 0 {
		if err := output.NewPrinter(&b).Print(state.Rows...); err != nil {
			return err
		}
	}
	if p.Live && state.Sites > 0 {
		full := barWidth * state.Updated / state.Sites
		fmt.Fprintf(&b, "[%s%s] %d/%d\n", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), state.Updated,
			state.Sites)
	}
	for _, line := range append([]string{state.Summary}, state.Warnings...) {
		b.WriteString(line + "\n")
	}
	if state.Command != "" {
		b.WriteString("To continue it: " + state.Command + "\n")
	}
	text := b.String()
	if text == p.last {
		return nil
	}
	before := ""
	if p.Live && p.last != "" {
		before = fmt.Sprintf("\x1b[%dA\x1b[J", strings.Count(p.last, "\n"))
	}
	p.last = text
	if _, err := io.WriteString(p.Out, before+text); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}
