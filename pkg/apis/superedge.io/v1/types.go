package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkloadGridSpec is the spec of the grids of workloads: DeploymentGrid, StatefulSetGrid and DaemonSetGrid.
//
// +kubebuilder:validation:XValidation:rule="!has(self.templates) || self.templates.all(unit, self.templates[unit] in [\"\", 'default'] || (has(self.templatePool) && self.templates[unit] in self.templatePool))",message="templates names a template that is not in templatePool (nor \"default\", which is spec.template)"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultTemplateName) || self.defaultTemplateName in [\"\", 'default'] || (has(self.templatePool) && self.defaultTemplateName in self.templatePool)",message="defaultTemplateName names a template that is not in templatePool (nor \"default\", which is spec.template)"
type WorkloadGridSpec struct {
	// GridUniqKey is the key of a node label. The nodes with the same value of it are a unit, and every unit gets
	// a workload of its own.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="must be the key of a node label, such as zone1 or topology.kubernetes.io/zone"
	GridUniqKey string `json:"gridUniqKey"`

	// Template is the spec of the workload in every unit that Templates and DefaultTemplateName give no other.
	//
	// +optional
	Template Template `json:"template,omitzero"`

	// TemplatePool are further templates, by name. The name "default" stands for Template.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=1000
	TemplatePool map[string]Template `json:"templatePool,omitempty"`

	// Templates give units, by value of the node label, templates of the pool.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=10000
	Templates map[string]TemplateName `json:"templates,omitempty"`

	// DefaultTemplateName is the template of the units that are not in Templates. Empty, or "default": Template.
	//
	// +optional
	DefaultTemplateName TemplateName `json:"defaultTemplateName,omitempty"`

	// AutoDeleteUnusedTemplate removes templates from the pool that neither Templates nor DefaultTemplateName
	// name.
	//
	// +optional
	AutoDeleteUnusedTemplate bool `json:"autoDeleteUnusedTemplate,omitempty"`
}

// TemplateName names an entry of templatePool; empty and "default" stand for spec.template.
//
// +kubebuilder:validation:MaxLength=253
type TemplateName string

// DefaultTemplate is the name of spec.template.
const DefaultTemplate TemplateName = "default"

// UnitPhase says how it stands with a unit's workload.
type UnitPhase string

const (
	// UnitReady is that the workload is as the grid says, and all of its pods are ready.
	UnitReady UnitPhase = "Ready"
	// UnitProgressing is that the workload was created or changed, and its controller has not finished yet.
	UnitProgressing UnitPhase = "Progressing"
	// UnitFailed is that the workload cannot be made as the grid says; Reason and Message say why.
	UnitFailed UnitPhase = "Failed"
	// UnitRemoving is that no node is in the unit any more; the workload is deleted at RemovalTime.
	UnitRemoving UnitPhase = "Removing"
)

// UnitState is what is known of one unit's workload. The names of the counts are those of the workload's own
// status.
type UnitState struct {
	Phase UnitPhase `json:"phase"`
	// Template is the template in use, if it is not spec.template.
	//
	// +optional
	Template string `json:"template,omitempty"`
	// Replicas is the number of pods that there should be.
	//
	// +optional
	Replicas int64 `json:"replicas,omitempty"`
	// +optional
	UpdatedReplicas int64 `json:"updatedReplicas,omitempty"`
	// +optional
	ReadyReplicas int64 `json:"readyReplicas,omitempty"`
	// +optional
	AvailableReplicas int64 `json:"availableReplicas,omitempty"`
	// Reason is why the phase is Failed, in one word.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is the reason in full.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// RemovalTime is when the workload of a unit that has vanished is deleted.
	//
	// +optional
	RemovalTime *metav1.Time `json:"removalTime,omitempty"`
}

// WorkloadGridStatus is the status of the grids of workloads.
type WorkloadGridStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Units is the number of units that there are.
	Units int32 `json:"units"`
	// ReadyUnits is the number of those whose workload is ready.
	ReadyUnits int32 `json:"readyUnits"`
	// States are the units, by value of the node label, with those that vanished and still have a workload.
	//
	// +optional
	States map[string]UnitState `json:"states,omitempty"`
	// Conditions are Ready, Progressing and Degraded.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of the grids' conditions.
const (
	// ConditionReady is True when every unit's workload is ready.
	ConditionReady = "Ready"
	// ConditionProgressing is True while a workload is being created, changed or removed.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True when something keeps a unit from what the grid says, until someone mends it.
	ConditionDegraded = "Degraded"
)

// DeploymentGrid is one Deployment per unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyUnits"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a grid is the value of a label and may have 63 characters at most"
type DeploymentGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkloadGridSpec `json:"spec"`
	// +optional
	Status WorkloadGridStatus `json:"status,omitzero"`
}

// DeploymentGridList is a list of them.
//
// +kubebuilder:object:root=true
type DeploymentGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DeploymentGrid `json:"items"`
}

// StatefulSetGrid is one StatefulSet per unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=ssg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyUnits"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a grid is the value of a label and may have 63 characters at most"
type StatefulSetGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkloadGridSpec `json:"spec"`
	// +optional
	Status WorkloadGridStatus `json:"status,omitzero"`
}

// StatefulSetGridList is a list of them.
//
// +kubebuilder:object:root=true
type StatefulSetGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StatefulSetGrid `json:"items"`
}

// DaemonSetGrid is one DaemonSet per unit.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=dsg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Units",type=integer,JSONPath=".status.units"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readyUnits"
// +kubebuilder:printcolumn:name="Degraded",type=string,priority=1,JSONPath=".status.conditions[?(@.type=='Degraded')].message"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name of a grid is the value of a label and may have 63 characters at most"
type DaemonSetGrid struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkloadGridSpec `json:"spec"`
	// +optional
	Status WorkloadGridStatus `json:"status,omitzero"`
}

// DaemonSetGridList is a list of them.
//
// +kubebuilder:object:root=true
type DaemonSetGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DaemonSetGrid `json:"items"`
}

// ServiceGridSpec is the spec of a ServiceGrid.
type ServiceGridSpec struct {
	// GridUniqKey is the key of a node label. A node reaches, through the Service, only pods on nodes with the
	// same value of it.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="must be the key of a node label, such as zone1 or topology.kubernetes.io/zone"
	GridUniqKey string `json:"gridUniqKey"`

	// Template is the spec of the Service.
	//
	// +optional
	Template Template `json:"template,omitzero"`
}

// ServiceGridStatus is the status of a ServiceGrid.
type ServiceGridStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Units is the number of units that the Service is closed over.
	Units int32 `json:"units"`
	// Conditions are Ready, Progressing and Degraded.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServiceGrid is one Service of which every node reaches only its own unit's endpoints.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
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

	Spec ServiceGridSpec `json:"spec"`
	// +optional
	Status ServiceGridStatus `json:"status,omitzero"`
}

// ServiceGridList is a list of them.
//
// +kubebuilder:object:root=true
type ServiceGridList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ServiceGrid `json:"items"`
}
