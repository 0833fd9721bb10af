package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// WorkloadGridSpec is the spec of the grids of workloads: DeploymentGrid, StatefulSetGrid and DaemonSetGrid.
//
// +kubebuilder:validation:XValidation:rule="!has(self.templates) || self.templates.all(unit, self.templates[unit] in [\"\", 'default'] || (has(self.templatePool) && self.templates[unit] in self.templatePool))",message="templates names a template that is not in templatePool (nor \"default\", which is spec.template)"
// +kubebuilder:validation:XValidation:rule="(has(self.unitLabel) && self.unitLabel) == (has(oldSelf.unitLabel) && oldSelf.unitLabel)",message="unitLabel cannot be changed: it is part of the workloads' selectors"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultTemplateName) || self.defaultTemplateName in [\"\", 'default'] || (has(self.templatePool) && self.defaultTemplateName in self.templatePool)",message="defaultTemplateName names a template that is not in templatePool (nor \"default\", which is spec.template)"
type WorkloadGridSpec struct {
	// GridUniqKey is the key of a node label. Nodes with the same value of the label form a unit, and every unit gets a
	// workload of its own.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="must be the key of a node label, such as zone1 or topology.kubernetes.io/zone"
	GridUniqKey string `json:"gridUniqKey"`

	// Template is the spec of the workload in every unit for which Templates and DefaultTemplateName name no other.
	Template Template `json:"template,omitzero"`

	// TemplatePool has further templates, by name. The name "default" means Template.
	//
	// +kubebuilder:validation:MaxProperties=1000
	TemplatePool map[string]Template `json:"templatePool,omitempty"`

	// Templates has the names of the units' templates in the pool, by value of the node label.
	//
	// +kubebuilder:validation:MaxProperties=10000
	Templates map[string]TemplateName `json:"templates,omitempty"`

	// DefaultTemplateName names the template of the units that are not in Templates. Empty and "default" mean Template.
	DefaultTemplateName TemplateName `json:"defaultTemplateName,omitempty"`

	// AutoDeleteUnusedTemplate removes templates from the pool that neither Templates nor DefaultTemplateName
	// name.
	AutoDeleteUnusedTemplate bool `json:"autoDeleteUnusedTemplate,omitempty"`

	// UnitLabel adds the label superedge.io/grid-unit, whose value is the unit, to the pods and the selector of every
	// workload. Then autoscalers, disruption budgets, network policies and the adoption of orphans can tell the units
	// apart. It cannot be changed, because a selector cannot be changed. A workload that is adopted keeps its own
	// selector, and the condition SpecWarning says so. Choose true for new grids.
	UnitLabel bool `json:"unitLabel,omitempty"`

	// TolerateUnreachable adds tolerations without a time for the taints node.kubernetes.io/unreachable and
	// node.kubernetes.io/not-ready to the pods, so that a site that was cut off for more than 5 minutes finds its pods
	// still there when it returns. What a template says of these taints stays as it is. A change is part of a revision
	// and makes the pods anew, as a change of the template does. Pods of a node that is gone for good stay until the
	// Node is deleted.
	TolerateUnreachable bool `json:"tolerateUnreachable,omitempty"`

	// ProgressDeadlineSeconds is how long a workload that is not as the grid says may make no progress before it counts
	// as Stalled. The default is 600. A Deployment whose own deadline has passed is Stalled at once.
	//
	// +kubebuilder:validation:Minimum=1
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`

	// Removal says what happens to the workloads of units that vanish.
	Removal *Removal `json:"removal,omitempty"`

	// Overrides change the template for some units. They are applied in this order to the template that a unit gets.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	Overrides []Override `json:"overrides,omitempty"`

	// Rollout is how a change of templates and overrides reaches the units. Without it, all units get the change at
	// once.
	Rollout *Rollout `json:"rollout,omitempty"`

	// RevisionHistoryLimit is how many revisions that no unit has are kept for an undo; 10 if it is left out. Revisions
	// are kept of grids with a rollout.
	//
	// +kubebuilder:validation:Minimum=0
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// Removal says what happens to the workloads of units that vanish: no node has their value of the label any more.
type Removal struct {
	// Policy is Delete, which removes the workload after the grace time, or Retain, which never does. Delete is the
	// default.
	//
	// +kubebuilder:validation:Enum=Delete;Retain
	Policy RemovalPolicy `json:"policy,omitempty"`

	// GraceSeconds is how long the workload outlives the last node of its unit. The default is the controller's
	// --unit-removal-grace, which is 300 unless set.
	//
	// +kubebuilder:validation:Minimum=0
	GraceSeconds *int32 `json:"graceSeconds,omitempty"`

	// MaxUnits is how many units may vanish, be scaled to 0, or lose or gain an override because labels of nodes
	// changed, within 24 hours, as a number or as a percentage of all units. The default is 10%. One unit always may.
	// If there are more, none of them is changed until someone approves of it.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^(100|[0-9]{1,2})%$') : int(self) >= 0",message="must be a number or a percentage from 0% to 100%"
	MaxUnits *intstr.IntOrString `json:"maxUnits,omitempty"`
}

// RemovalPolicy says whether the workloads of vanished units are deleted.
type RemovalPolicy string

const (
	// RemovalDelete deletes the workload of a unit that has vanished, after the grace time.
	RemovalDelete RemovalPolicy = "Delete"
	// RemovalRetain keeps the workload of a unit that has vanished.
	RemovalRetain RemovalPolicy = "Retain"
)

// TemplateName names an entry of templatePool; empty and "default" mean spec.template. It has no slash, comma, white
// space or control character.
//
// +kubebuilder:validation:MaxLength=253
// +kubebuilder:validation:Pattern=`^[^/,\s\x00-\x1f\x7f]*$`
type TemplateName string

// DefaultTemplate is the name of spec.template.
const DefaultTemplate TemplateName = "default"

// UnitPhase is the phase of a unit's workload.
type UnitPhase string

const (
	// UnitReady means that the workload is as the grid says, and that all of its pods are ready.
	UnitReady UnitPhase = "Ready"
	// UnitProgressing means that the workload was created or changed, and that its controller has not finished yet.
	UnitProgressing UnitPhase = "Progressing"
	// UnitStalled means that the workload makes no progress any more, or that its controller reports a failure; Reason
	// and Message say why.
	UnitStalled UnitPhase = "Stalled"
	// UnitUnreachable means that the control plane has lost contact with all nodes of the unit: the site is offline.
	UnitUnreachable UnitPhase = "Unreachable"
	// UnitRetained means that no node is in the unit any more, and that its workload stays because spec.removal says
	// so.
	UnitRetained UnitPhase = "Retained"
	// UnitFailed means that the workload cannot be made as the grid says; Reason and Message say why.
	UnitFailed UnitPhase = "Failed"
	// UnitHeld means that the workload's annotation superedge.io/hold keeps the controller from changing it. Message is
	// the annotation's value.
	UnitHeld UnitPhase = "Held"
	// UnitRemoving means that no node is in the unit any more, and that its workload is deleted at RemovalTime.
	UnitRemoving UnitPhase = "Removing"
)

// UnitState is the state of one unit's workload. The counts have the names that they have in the workload's own status.
type UnitState struct {
	Phase UnitPhase `json:"phase"`
	// Template is the template in use, if it is not spec.template.
	Template string `json:"template,omitempty"`
	// Revision is the revision that the workload has, if there is a rollout and it is not the updateRevision.
	Revision string `json:"revision,omitempty"`
	// Replicas is the number of pods that there should be.
	Replicas          int64 `json:"replicas,omitempty"`
	UpdatedReplicas   int64 `json:"updatedReplicas,omitempty"`
	ReadyReplicas     int64 `json:"readyReplicas,omitempty"`
	AvailableReplicas int64 `json:"availableReplicas,omitempty"`
	// Reason is why the phase is Failed, Stalled or Removing, in one word.
	Reason string `json:"reason,omitempty"`
	// Message is the reason in full.
	Message string `json:"message,omitempty"`
	// RemovalTime is when the workload of a unit that has vanished is deleted.
	RemovalTime *metav1.Time `json:"removalTime,omitempty"`
	// RemovalApproved is set if someone has approved the removal of many units, of which this is one.
	RemovalApproved bool `json:"removalApproved,omitempty"`
	// ProgressTime is when a workload that is not ready last made progress.
	ProgressTime *metav1.Time `json:"progressTime,omitempty"`
}

// UnitLoss is a unit that has lost something, and when.
type UnitLoss struct {
	Unit string      `json:"unit"`
	Time metav1.Time `json:"time"`
}

// WorkloadGridStatus is the status of the grids of workloads.
type WorkloadGridStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Units is the number of units.
	Units int32 `json:"units"`
	// ReadyUnits is the number of units whose workload is ready.
	ReadyUnits int32 `json:"readyUnits"`
	// UnreachableUnits is the number of units whose nodes are all unreachable. They count neither as ready nor as
	// failed.
	UnreachableUnits int32 `json:"unreachableUnits,omitempty"`
	// FailedUnits is the number of units whose workload is Failed or Stalled.
	FailedUnits int32 `json:"failedUnits,omitempty"`
	// GridUniqKey is the key of the node label that the workloads follow. It differs from the spec's while a change of
	// the key waits for an approval.
	GridUniqKey string `json:"gridUniqKey,omitempty"`
	// States has the states of the units by value of the node label, including vanished units that still have a
	// workload. For grids with more than 500 units the ready ones are left out.
	//
	// +mapType=atomic
	States map[string]UnitState `json:"states,omitempty"`
	// UnlistedReadyUnits is the number of ready units that are left out of States.
	UnlistedReadyUnits int32 `json:"unlistedReadyUnits,omitempty"`
	// UnlistedUnits is the number of units that are not ready, and are left out of States because the object would
	// become too large.
	UnlistedUnits int32 `json:"unlistedUnits,omitempty"`
	// Losses are the units whose workload was removed or scaled to 0, or whose overrides changed with labels of nodes,
	// within the last 24 hours, without an approval. They count against spec.removal.maxUnits.
	//
	// +listType=atomic
	Losses []UnitLoss `json:"losses,omitempty"`
	// CurrentRevision is the revision that ran in all units last: what the last complete rollout gave to them. New
	// units get it until their wave begins.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// UpdateRevision is the revision of the spec. Revisions are names of ControllerRevisions.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Rollout is how far the rollout of the updateRevision has come.
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Conditions are Ready, Available, Progressing, Stalled and Degraded, and SpecWarning if there is a warning.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of the grids' conditions.
const (
	// ConditionReady is True when the workloads of all reachable units are ready, and Unknown if no unit is reachable.
	ConditionReady = "Ready"
	// ConditionAvailable is True when every reachable unit has enough available pods, even while a change is being
	// rolled out.
	ConditionAvailable = "Available"
	// ConditionStalled is True when a workload makes no progress any more. Tools that use kstatus stop waiting then.
	ConditionStalled = "Stalled"
	// ConditionSpecWarning is True when something in the spec has no effect, which is probably a typing error.
	ConditionSpecWarning = "SpecWarning"
	// ConditionProgressing is True while a workload is being created, changed or removed.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True when a unit cannot be what the grid says, and someone has to mend that.
	ConditionDegraded = "Degraded"
)

// DeploymentGrid makes one Deployment per unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=6"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=dg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyUnits"
// +kubebuilder:printcolumn:name="Unreachable",type=integer,priority=1,JSONPath=".status.unreachableUnits"
// +kubebuilder:printcolumn:name="Rollout",type=string,priority=1,JSONPath=".status.rollout.phase"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a grid is the value of a label and may have 63 characters at most"
type DeploymentGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WorkloadGridSpec   `json:"spec"`
	Status WorkloadGridStatus `json:"status,omitzero"`
}

// DeploymentGridList is a list of DeploymentGrids.
//
// +kubebuilder:object:root=true
type DeploymentGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DeploymentGrid `json:"items"`
}

// StatefulSetGrid makes one StatefulSet per unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=6"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=ssg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyUnits"
// +kubebuilder:printcolumn:name="Unreachable",type=integer,priority=1,JSONPath=".status.unreachableUnits"
// +kubebuilder:printcolumn:name="Rollout",type=string,priority=1,JSONPath=".status.rollout.phase"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a grid is the value of a label and may have 63 characters at most"
type StatefulSetGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WorkloadGridSpec   `json:"spec"`
	Status WorkloadGridStatus `json:"status,omitzero"`
}

// StatefulSetGridList is a list of StatefulSetGrids.
//
// +kubebuilder:object:root=true
type StatefulSetGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StatefulSetGrid `json:"items"`
}

// DaemonSetGrid makes one DaemonSet per unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=6"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=dsg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyUnits"
// +kubebuilder:printcolumn:name="Unreachable",type=integer,priority=1,JSONPath=".status.unreachableUnits"
// +kubebuilder:printcolumn:name="Rollout",type=string,priority=1,JSONPath=".status.rollout.phase"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a grid is the value of a label and may have 63 characters at most"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.overrides) || self.spec.overrides.all(override, !has(override.replicas))",message="overrides of a DaemonSetGrid have no replicas: a DaemonSet has a pod on every node"
type DaemonSetGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   WorkloadGridSpec   `json:"spec"`
	Status WorkloadGridStatus `json:"status,omitzero"`
}

// DaemonSetGridList is a list of DaemonSetGrids.
//
// +kubebuilder:object:root=true
type DaemonSetGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DaemonSetGrid `json:"items"`
}

// ServiceGridSpec is the spec of a ServiceGrid.
type ServiceGridSpec struct {
	// GridUniqKey is the key of a node label. Through the Service a node reaches only pods on nodes with the same value
	// of the label.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="must be the key of a node label, such as zone1 or topology.kubernetes.io/zone"
	GridUniqKey string `json:"gridUniqKey"`

	// FallbackKeys are the keys of further node labels, in order of preference, for units without a ready pod: the
	// Service's topologyKeys are GridUniqKey followed by these. The last one may be "*", which means any node.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=15
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.all(key, key == '*' || key.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="must be keys of node labels, or *"
	// +kubebuilder:validation:XValidation:rule="!self.exists(key, key == '*') || (self[size(self) - 1] == '*' && self.filter(key, key == '*').size() == 1)",message="* must be the last one"
	FallbackKeys []string `json:"fallbackKeys,omitempty"`

	// Template is the spec of the Service.
	Template Template `json:"template,omitzero"`
}

// ServiceGridStatus is the status of a ServiceGrid.
type ServiceGridStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Units is the number of units, each of which reaches only its own pods through the Service.
	Units int32 `json:"units"`
	// Conditions are Ready, Progressing and Degraded.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServiceGrid makes one Service through which every node reaches only the endpoints of its own unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=6"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=sg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=".status.conditions[?(@.type=='Ready')].status"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 59",message="the Service is named after the grid, with -svc, and may have 63 characters at most"
type ServiceGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ServiceGridSpec   `json:"spec"`
	Status ServiceGridStatus `json:"status,omitzero"`
}

// ServiceGridList is a list of ServiceGrids.
//
// +kubebuilder:object:root=true
type ServiceGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServiceGrid `json:"items"`
}
