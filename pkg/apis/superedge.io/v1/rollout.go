package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// SiteSelector selects sites: those that Names or NodeSelector match.
//
// +kubebuilder:validation:XValidation:rule="has(self.names) || has(self.nodeSelector)",message="give names, nodeSelector or both"
type SiteSelector struct {
	// Names are names of sites. A * matches any characters: "hz-*".
	//
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[-A-Za-z0-9_.*]+$`
	Names []string `json:"names,omitempty"`

	// NodeSelector matches a site if it matches at least one of the site's nodes.
	NodeSelector *NodeSelector `json:"nodeSelector,omitempty"`
}

// NodeSelector selects nodes by their labels, as a LabelSelector does. All requirements must be met.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="(has(self.matchLabels) && size(self.matchLabels) > 0) || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",message="give matchLabels or matchExpressions; a selector without any would match every node"
type NodeSelector struct {
	// MatchLabels are labels that a node must have, with these values.
	//
	// +kubebuilder:validation:MaxProperties=1000
	MatchLabels map[string]string `json:"matchLabels,omitempty"`

	// MatchExpressions are further requirements.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	MatchExpressions []NodeRequirement `json:"matchExpressions,omitempty"`
}

// NodeRequirement is a requirement on one label of a node.
//
// +kubebuilder:validation:XValidation:rule="(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",message="the operators In and NotIn need values, the others take none"
type NodeRequirement struct {
	// Key is the key of the label.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key"`

	// Operator says how the label's value relates to Values.
	//
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator metav1.LabelSelectorOperator `json:"operator"`

	// Values are for the operators In and NotIn, which need at least one. The others take none.
	//
	// +listType=atomic
	Values []string `json:"values,omitempty"`
}

// LabelSelector returns the same as Kubernetes' type.
func (s *NodeSelector) LabelSelector() *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	out := &metav1.LabelSelector{MatchLabels: s.MatchLabels}
	for _, e := range s.MatchExpressions {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement(e))
	}
	return out
}

// Override changes the template for some sites.
//
// +kubebuilder:validation:XValidation:rule="has(self.replicas) || has(self.images) || has(self.patch)",message="give replicas, images or patch"
type Override struct {
	// Name names the override in messages.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Sites are the sites that it is for.
	Sites SiteSelector `json:"sites"`

	// Replicas replaces the template's replicas.
	//
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// Images replaces the images of containers, by the name of the container. Init containers count too.
	//
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=100
	Images map[string]string `json:"images,omitempty"`

	// Patch is a strategic merge patch of the template, as kubectl patch makes it: lists whose elements have keys are
	// merged by these keys. It is applied after Replicas and Images.
	Patch Template `json:"patch,omitzero"`
}

// Rollout is how a change reaches the sites.
//
// +kubebuilder:validation:XValidation:rule="!has(self.waves) || self.waves.all(wave, has(wave.sites) || wave.name == self.waves[size(self.waves) - 1].name)",message="only the last wave may leave sites out: it has those that no other wave has"
type Rollout struct {
	// Paused starts no further site while it is true.
	Paused bool `json:"paused,omitempty"`

	// Waves are groups of sites that get a change one after the other. A site is in the first one that matches it.
	// Sites that match none get the change after the last wave. Without any wave, all sites are one.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=25
	Waves []Wave `json:"waves,omitempty"`

	// MaxFailures is how many sites may fail, or make no progress, before the rollout halts, as a number or as a
	// percentage of the grid's sites, rounded down. It is 0 if it is left out.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) >= 0",message="must be a number of 0 or more, or a percentage from 0% to 100%"
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	MaxFailures *intstr.IntOrString `json:"maxFailures,omitempty"`

	// OnFailure is what happens when more sites have failed: Halt, the default, starts no further site; Rollback also
	// takes every site that has another revision back to the one that ran everywhere, the last one of each wave first.
	//
	// +kubebuilder:validation:Enum=Halt;Rollback
	OnFailure OnFailure `json:"onFailure,omitempty"`

	// Unreachable is what happens with sites whose nodes cannot be reached: Defer, the default, does not wait for them,
	// and gives them the change when they return; Wait waits for them.
	//
	// +kubebuilder:validation:Enum=Defer;Wait
	Unreachable OnUnreachable `json:"unreachable,omitempty"`
}

// OnFailure is what a rollout does when too many sites have failed.
type OnFailure string

const (
	// OnFailureHalt starts no further site.
	OnFailureHalt OnFailure = "Halt"
	// OnFailureRollback takes all sites back to the revision that ran everywhere.
	OnFailureRollback OnFailure = "Rollback"
)

// OnUnreachable is what a rollout does about sites that cannot be reached.
type OnUnreachable string

const (
	// UnreachableDefer does not wait for them.
	UnreachableDefer OnUnreachable = "Defer"
	// UnreachableWait waits for them.
	UnreachableWait OnUnreachable = "Wait"
)

// Wave is a group of sites of a rollout.
type Wave struct {
	// Name names the wave, in the status and in approvals.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Sites are the sites of the wave. The last wave may leave them out; it then has the sites that no other wave has.
	Sites *SiteSelector `json:"sites,omitempty"`

	// MaxUnavailable is how many sites of the wave may have the change and not be proven, as a number or a part of the
	// wave's sites, such as 10%. It is 25% if it is left out, and 1 site at least. A site is proven when its pods have
	// run the change, ready without a break, for the soak time, and have passed the check.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) >= 1",message="must be a number of 1 or more, or a percentage from 1% to 100%"
	// +kubebuilder:validation:Pattern=`^(100|[1-9][0-9]?)%$`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`

	// MaxSilent is how many sites of the wave may have fallen silent with the change, unproven, when the wave is done,
	// as a number or a part of the wave's sites. It is 10% if it is left out, and 1 site at least. If there are more,
	// the wave waits for an approval.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string || int(self) >= 0",message="must be a number of 0 or more, or a percentage from 0% to 100%"
	// +kubebuilder:validation:Pattern=`^(100|[0-9]{1,2})%$`
	MaxSilent *intstr.IntOrString `json:"maxSilent,omitempty"`

	// Soak is how long the pods of each site have to be ready without a break before the site is proven, such as 30m.
	//
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('8760h')",message="must be a duration, such as 30m, of 8760h at most"
	Soak *metav1.Duration `json:"soak,omitempty"`

	// Approval is whether the next wave waits until someone approves this one, with the annotation
	// superedge.io/approved of the grid: Automatic, the default, or Manual. A wave without a proven site waits for an
	// approval in any case.
	//
	// +kubebuilder:validation:Enum=Automatic;Manual
	Approval Approval `json:"approval,omitempty"`

	// Check is a Job that has to succeed in every site of the wave before the site is proven.
	Check *Check `json:"check,omitempty"`
}

// Check is a Job by which a site proves itself. It runs on the site's nodes, once the pods of the site are ready.
type Check struct {
	// Template is the spec of the Job. The pods must not have labels that the grid's workloads or a Service select.
	Template Template `json:"template"`

	// DeadlineSeconds is how long the Job may take. It is 600 if it is left out. A Job that a lost node or a disruption
	// has ended runs again.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	DeadlineSeconds *int32 `json:"deadlineSeconds,omitempty"`
}

// Approval is whether someone has to approve a wave.
type Approval string

const (
	// ApprovalAutomatic needs no approval.
	ApprovalAutomatic Approval = "Automatic"
	// ApprovalManual waits for an approval.
	ApprovalManual Approval = "Manual"
)

// RolloutPhase is the state of a rollout.
type RolloutPhase string

const (
	// RolloutProgressing means that sites get the change.
	RolloutProgressing RolloutPhase = "Progressing"
	// RolloutSoaking means that all sites of the wave are ready, and not all of them are proven.
	RolloutSoaking RolloutPhase = "Soaking"
	// RolloutAwaitingApproval means that a person has to approve of the wave: because it asks for that, because none of
	// its sites is proven, or because too many fell silent with the change.
	RolloutAwaitingApproval RolloutPhase = "AwaitingApproval"
	// RolloutOutage means that so many sites fell silent at once that nothing begins until fewer are silent, or
	// somebody resumes the rollout.
	RolloutOutage RolloutPhase = "Outage"
	// RolloutPaused means that spec.rollout.paused is true.
	RolloutPaused RolloutPhase = "Paused"
	// RolloutHalted means that too many sites have failed.
	RolloutHalted RolloutPhase = "Halted"
	// RolloutRollingBack means that sites go back to the revision before.
	RolloutRollingBack RolloutPhase = "RollingBack"
	// RolloutRolledBack means that all sites that can be reached have gone back.
	RolloutRolledBack RolloutPhase = "RolledBack"
	// RolloutComplete means that every wave is done, and that every site that counts is proven.
	RolloutComplete RolloutPhase = "Complete"
)

// RolloutStatus is how far a rollout has come. What the controller remembers of an attempt are its startTime, atOnce,
// passed, provenSites, acceptedSites, sites, haltTime, haltReason, outageAccepted and goesBack. The rest is computed at
// each pass. The counts are of sites, and of all waves.
type RolloutStatus struct {
	Phase RolloutPhase `json:"phase"`
	// Wave is the name of the current wave; empty without one, and for the sites that no wave names.
	Wave string `json:"wave,omitempty"`
	// Updated is how many sites have the updateRevision.
	Updated int32 `json:"updated"`
	// Ready is how many of those are ready.
	Ready int32 `json:"ready"`
	// Proven is how many sites have proven the updateRevision in this attempt.
	Proven int32 `json:"proven,omitempty"`
	// Failed is how many sites have failed, or make no progress, with the updateRevision.
	Failed int32 `json:"failed"`
	// Suspects is how many sites fell silent with the updateRevision, unproven.
	Suspects int32 `json:"suspects,omitempty"`
	// Deferred is how many sites do not get the change now because they cannot be reached, or are held.
	Deferred int32 `json:"deferred"`
	// Message says what the rollout waits for.
	Message string `json:"message,omitempty"`
	// StartTime is when this attempt began. It is part of the approvals, which are good for one attempt.
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// HeardTime is until when the times of sites have certainly run. After a time in which no controller follows the
	// rollout, or the store of the API server is set back, they move on by what has passed since then.
	HeardTime *metav1.Time `json:"heardTime,omitempty"`
	// AtOnce is whether the attempt gives all sites the change without waves.
	AtOnce bool `json:"atOnce,omitempty"`
	// Passed are the waves whose gate has passed in this attempt: their sites were proven, and a person approved where
	// that was asked for. It is "*" alone once all gates have passed and every site that counted was proven, and "_"
	// stands for the sites that no wave names.
	//
	// +listType=atomic
	Passed []string `json:"passed,omitempty"`
	// ProvenSites are the sites that have proven the updateRevision in this attempt: 10 characters for each, 6 of a
	// hash of its name and 4 of a hash of its workload's UID. They are dropped once the rollout is complete.
	//
	// +listType=atomic
	ProvenSites []string `json:"provenSites,omitempty"`
	// AcceptedSites are the sites that failed in this attempt, and that somebody has accepted by resuming the rollout,
	// in the form of provenSites. Their names count alone.
	//
	// +listType=atomic
	AcceptedSites []string `json:"acceptedSites,omitempty"`
	// Awaits is the value of the annotation superedge.io/approved with which the rollout continues; empty if it waits
	// for no approval.
	Awaits string `json:"awaits,omitempty"`
	// HaltTime is when the rollout has halted, or has begun to go back, or since when an outage keeps it. An annotation
	// superedge.io/resumed with this time continues it.
	HaltTime *metav1.Time `json:"haltTime,omitempty"`
	// HaltReason says what haltTime is about: Failures or Outage.
	HaltReason HaltReason `json:"haltReason,omitempty"`
	// OutageAccepted is the time up to which silent sites make no outage: they were silent when the attempt began, or
	// somebody has resumed the rollout. It is by the clock that says since when nodes are silent.
	OutageAccepted *metav1.Time `json:"outageAccepted,omitempty"`
	// GoesBack says why all sites go to the currentRevision; empty if they do not.
	GoesBack string `json:"goesBack,omitempty"`
	// Sites are the sites that are about to get the updateRevision, or have it and have not proven it. There are 500 at
	// most.
	//
	// +listType=map
	// +listMapKey=name
	Sites []RolloutSite `json:"sites,omitempty"`
	// Waves are the waves, in order.
	//
	// +listType=atomic
	Waves []WaveStatus `json:"waves,omitempty"`
}

// HaltReason is why no site begins until a person resumes the rollout.
type HaltReason string

const (
	// HaltFailures means that too many sites have failed.
	HaltFailures HaltReason = "Failures"
	// HaltOutage means that so many sites fell silent that this tells nothing of the change.
	HaltOutage HaltReason = "Outage"
)

// RolloutSiteState is what an unproven site does.
type RolloutSiteState string

const (
	// RolloutSitePending means that the site is about to get the updateRevision.
	RolloutSitePending RolloutSiteState = "Pending"
	// RolloutSiteProgressing means that its pods are not ready with it yet.
	RolloutSiteProgressing RolloutSiteState = "Progressing"
	// RolloutSiteWaiting means that pods wait until somebody deletes them, or changes a partition.
	RolloutSiteWaiting RolloutSiteState = "Waiting"
	// RolloutSiteSoaking means that its pods are ready, and have to stay so for the soak time.
	RolloutSiteSoaking RolloutSiteState = "Soaking"
	// RolloutSiteChecking means that its check has not succeeded yet.
	RolloutSiteChecking RolloutSiteState = "Checking"
	// RolloutSiteReturning means that it fell silent before any of its kubelets had seen a pod of the updateRevision,
	// and that its workload is put back.
	RolloutSiteReturning RolloutSiteState = "Returning"
	// RolloutSiteSuspect means that it fell silent with the updateRevision.
	RolloutSiteSuspect RolloutSiteState = "Suspect"
	// RolloutSiteFailed means that it has failed with the updateRevision.
	RolloutSiteFailed RolloutSiteState = "Failed"
)

// RolloutSite is a site that is about to get the updateRevision, or has it and has not proven it. Its times move on
// while the site is silent or held, and during an outage: its deadline, its soak time and that of its check stand still
// then. They are the controller's times: no clock of a node counts.
type RolloutSite struct {
	Name  string           `json:"name"`
	State RolloutSiteState `json:"state"`
	// Workload is a hash of the UID of the workload that the entry is about. A new workload begins its proof again.
	Workload string `json:"workload,omitempty"`
	// From is the revision that the workload had before. It is empty if that is not known, and once a kubelet has
	// certainly seen a pod of the updateRevision.
	From string `json:"from,omitempty"`
	// Since is when the deadline of the site began: when it got the updateRevision, last made progress, or lost a pod.
	Since *metav1.Time `json:"since,omitempty"`
	// ReadyTime is since when its pods have been ready without a break.
	ReadyTime *metav1.Time `json:"readyTime,omitempty"`
	// SoakedSeconds is for how long they had been ready when the site was last silent.
	SoakedSeconds int32 `json:"soakedSeconds,omitempty"`
	// SilentTime is since when the times of the site stand still.
	SilentTime *metav1.Time `json:"silentTime,omitempty"`
	// Pods are some of the site's pods as they were when the soak began: for each a hash of its UID, and one of the IDs
	// of its containers.
	//
	// +listType=atomic
	Pods []string `json:"pods,omitempty"`
	// CheckTime is when its check began, checkHash a hash of that check, and checked is whether it has succeeded.
	CheckTime *metav1.Time `json:"checkTime,omitempty"`
	CheckHash string       `json:"checkHash,omitempty"`
	Checked   bool         `json:"checked,omitempty"`
	// SilenceApproved is whether somebody lets the rollout continue although the site is silent. It lasts until the
	// site is reachable again.
	SilenceApproved bool `json:"silenceApproved,omitempty"`
	// Message says why it has failed, or what it waits for.
	Message string `json:"message,omitempty"`
}

// WaveState is the state of a wave.
type WaveState string

const (
	// WavePending means that a wave before it is not done.
	WavePending WaveState = "Pending"
	// WaveProgressing means that its sites get the change.
	WaveProgressing WaveState = "Progressing"
	// WaveSoaking means that all its sites are ready, and not all of them are proven.
	WaveSoaking WaveState = "Soaking"
	// WaveAwaitingApproval means that a person has to approve of it.
	WaveAwaitingApproval WaveState = "AwaitingApproval"
	// WaveDone means that its gate has passed, so that the next wave may begin.
	WaveDone WaveState = "Done"
)

// WaveStatus is the progress of a wave.
type WaveStatus struct {
	// Name is empty for the sites that no wave names.
	Name  string    `json:"name,omitempty"`
	State WaveState `json:"state"`
	// Sites is how many sites are in the wave. The other counts are as those of the rollout.
	Sites    int32 `json:"sites"`
	Updated  int32 `json:"updated"`
	Ready    int32 `json:"ready"`
	Proven   int32 `json:"proven,omitempty"`
	Failed   int32 `json:"failed"`
	Suspects int32 `json:"suspects,omitempty"`
	Deferred int32 `json:"deferred"`
}
