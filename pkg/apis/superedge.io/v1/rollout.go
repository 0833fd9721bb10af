package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// UnitSelector selects units: those that Names or NodeSelector match.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.nodeSelector)",message="give names, nodeSelector or both"
type UnitSelector struct {
	// Names are names of units. A * matches any characters: "hz-*".
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[-A-Za-z0-9_.*]+$`
	Names []string `json:"names,omitempty"`

	// NodeSelector matches a unit if it matches at least one of the unit's nodes.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// Override changes the template for some units.
//
// +kubebuilder:validation:XValidation:rule="has(self.replicas) || has(self.images) || has(self.patch)",message="give replicas, images or patch"
type Override struct {
	// Name names the override in messages.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Units are the units that it is for.
	Units UnitSelector `json:"units"`

	// Replicas replaces the template's replicas.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// Images replaces the images of containers, by the name of the container. Init containers count too.
	//
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=100
	Images map[string]string `json:"images,omitempty"`

	// Patch is a strategic merge patch of the template, as kubectl patch makes it: lists whose elements have keys are
	// merged by these keys. It is applied after Replicas and Images.
	//
	// +optional
	Patch Template `json:"patch,omitzero"`
}

// Rollout is how a change reaches the units.
//
// +kubebuilder:validation:XValidation:rule="!has(self.waves) || self.waves.all(wave, has(wave.units) || wave.name == self.waves[size(self.waves) - 1].name)",message="only the last wave may leave units out: it has those that no other wave has"
type Rollout struct {
	// Paused starts no further unit while it is true.
	//
	// +optional
	Paused bool `json:"paused,omitempty"`

	// Waves are groups of units that get a change one after the other. A unit is in the first one that matches it.
	// Units that match none get the change after the last wave. Without any wave, all units are one.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=25
	Waves []Wave `json:"waves,omitempty"`

	// MaxFailures is how many units may fail, or make no progress, before the rollout halts. It is 0 if it is left out.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxFailures int32 `json:"maxFailures,omitempty"`

	// OnFailure is what happens when more units have failed: Halt, the default, starts no further unit; Rollback also
	// takes the units that have the change back to the revision before, the last one first.
	//
	// +optional
	// +kubebuilder:validation:Enum=Halt;Rollback
	OnFailure OnFailure `json:"onFailure,omitempty"`

	// Unreachable is what happens with units whose nodes cannot be reached: Defer, the default, does not wait for them,
	// and gives them the change when they return; Wait waits for them.
	//
	// +optional
	// +kubebuilder:validation:Enum=Defer;Wait
	Unreachable OnUnreachable `json:"unreachable,omitempty"`
}

// OnFailure is what a rollout does when too many units have failed.
type OnFailure string

const (
	// OnFailureHalt starts no further unit.
	OnFailureHalt OnFailure = "Halt"
	// OnFailureRollback takes the units that have the change back.
	OnFailureRollback OnFailure = "Rollback"
)

// OnUnreachable is what a rollout does about units that cannot be reached.
type OnUnreachable string

const (
	// UnreachableDefer does not wait for them.
	UnreachableDefer OnUnreachable = "Defer"
	// UnreachableWait waits for them.
	UnreachableWait OnUnreachable = "Wait"
)

// Wave is a group of units of a rollout.
type Wave struct {
	// Name names the wave, in the status and in approvals.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Units are the units of the wave. The last wave may leave them out; it then has the units that no other wave has.
	//
	// +optional
	Units *UnitSelector `json:"units,omitempty"`

	// MaxUnavailable is how many units of the wave may have the change and not be ready, as a number or a part of the
	// wave's units, such as 10%. It is 25% if it is left out, and 1 unit at least.
	//
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) >= 1",message="must be a number of 1 or more, or a percentage from 1% to 100%"
	// +kubebuilder:validation:Pattern=`^(100|[1-9][0-9]?)%$`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// Soak is how long the next wave waits after all units of this one were ready, such as 30m.
	//
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be a duration, such as 30m, of 8760h at most"
	Soak *metav1.Duration `json:"soak,omitempty"`

	// Approval is whether the next wave waits until someone approves this one, with the annotation
	// superedge.io/approved of the grid: Automatic, the default, or Manual. A wave whose Units select none waits for an
	// approval in any case.
	//
	// +optional
	// +kubebuilder:validation:Enum=Automatic;Manual
	Approval Approval `json:"approval,omitempty"`
}

// Approval is whether someone has to approve a wave.
type Approval string

const (
	// ApprovalAutomatic asks nobody.
	ApprovalAutomatic Approval = "Automatic"
	// ApprovalManual waits for an approval.
	ApprovalManual Approval = "Manual"
)

// RolloutPhase is the state of a rollout.
type RolloutPhase string

const (
	// RolloutProgressing means that units get the change.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutSoaking means that all units of the wave are ready, and its soak time is not over.
	RolloutSoaking RolloutPhase = "Soaking"
	// RolloutAwaitingApproval means that the wave is done, and waits for its approval.
	RolloutAwaitingApproval RolloutPhase = "AwaitingApproval"
	// RolloutPaused means that spec.rollout.paused is true.
	RolloutPaused RolloutPhase = "Paused"
	// RolloutHalted means that too many units have failed.
	RolloutHalted RolloutPhase = "Halted"
	// RolloutRollingBack means that units go back to the revision before.
	RolloutRollingBack RolloutPhase = "RollingBack"
	// RolloutRolledBack means that all units that can be reached have gone back.
	RolloutRolledBack RolloutPhase = "RolledBack"
	// RolloutComplete means that every wave is done.
	RolloutComplete RolloutPhase = "Complete"
)

// RolloutStatus is how far a rollout has come. The counts are of units, and of all waves.
type RolloutStatus struct {
	Phase RolloutPhase `json:"phase"`
	// Wave is the name of the current wave; empty when there is none, and for the units that no wave names.
	//
	// +optional
	Wave string `json:"wave,omitempty"`
	// Updated is how many units have the updateRevision.
	Updated int32 `json:"updated"`
	// Ready is how many of those are ready.
	Ready int32 `json:"ready"`
	// Failed is how many of those, or of the units that were tried, have failed or make no progress.
	Failed int32 `json:"failed"`
	// Deferred is how many units do not get the change now because they cannot be reached, or are held.
	Deferred int32 `json:"deferred"`
	// Message says what the rollout waits for.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// Tolerated is how many failed units someone has accepted by resuming a halted rollout.
	//
	// +optional
	Tolerated int32 `json:"tolerated,omitempty"`
	// HaltTime is when the rollout has halted, or has begun to go back. An annotation superedge.io/resumed with this
	// time lets it go on.
	//
	// +optional
	HaltTime *metav1.Time `json:"haltTime,omitempty"`
	// Waves are the waves, in order.
	//
	// +optional
	// +listType=atomic
	Waves []WaveStatus `json:"waves,omitempty"`
}

// WaveState is the state of a wave.
type WaveState string

const (
	// WavePending means that a wave before it is not done.
	WavePending WaveState = "Pending"
	// WaveProgressing means that its units get the change.
	WaveProgressing WaveState = "Progressing"
	// WaveSoaking means that all its units are ready.
	WaveSoaking WaveState = "Soaking"
	// WaveAwaitingApproval means that it has soaked.
	WaveAwaitingApproval WaveState = "AwaitingApproval"
	// WaveDone means that the next wave may begin.
	WaveDone WaveState = "Done"
)

// WaveStatus is how far a wave has come.
type WaveStatus struct {
	// Name is empty for the units that no wave names.
	//
	// +optional
	Name  string    `json:"name,omitempty"`
	State WaveState `json:"state"`
	// Units is how many units are in the wave. The other counts are as those of the rollout.
	Units    int32 `json:"units"`
	Updated  int32 `json:"updated"`
	Ready    int32 `json:"ready"`
	Failed   int32 `json:"failed"`
	Deferred int32 `json:"deferred"`
	// ReadyTime is when all units of the wave were ready, from when on it soaks.
	//
	// +optional
	ReadyTime *metav1.Time `json:"readyTime,omitempty"`
}
