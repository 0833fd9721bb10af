package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// WorkloadGridSpec is the spec of the grids of workloads: DeploymentGrid, StatefulSetGrid and DaemonSetGrid.
//
// +kubebuilder:validation:XValidation:rule="!has(self.templates) || self.templates.all(site, self.templates[site] in [\"\", 'default'] || (has(self.templatePool) && self.templates[site] in self.templatePool))",message="templates names a template that is not in templatePool (nor \"default\", which is spec.template)"
// +kubebuilder:validation:XValidation:rule="(!has(self.siteLabel) || self.siteLabel) == (!has(oldSelf.siteLabel) || oldSelf.siteLabel)",message="siteLabel cannot be changed: it is part of the workloads' selectors"
// +kubebuilder:validation:XValidation:rule="!has(self.defaultTemplateName) || self.defaultTemplateName in [\"\", 'default'] || (has(self.templatePool) && self.defaultTemplateName in self.templatePool)",message="defaultTemplateName names a template that is not in templatePool (nor \"default\", which is spec.template)"
type WorkloadGridSpec struct {
	// GridUniqKey is the key of a node label. Nodes with the same value of the label form a site, and every site gets a
	// workload of its own.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="must be the key of a node label, such as zone1 or topology.kubernetes.io/zone"
	GridUniqKey string `json:"gridUniqKey"`

	// Template is the spec of the workload in every site for which Templates and DefaultTemplateName name no other.
	Template Template `json:"template,omitzero"`

	// TemplatePool has further templates, by name. The name "default" means Template.
	//
	// +kubebuilder:validation:MaxProperties=1000
	TemplatePool map[string]Template `json:"templatePool,omitempty"`

	// Templates has the names of the sites' templates in the pool, by value of the node label.
	//
	// +kubebuilder:validation:MaxProperties=10000
	Templates map[string]TemplateName `json:"templates,omitempty"`

	// DefaultTemplateName names the template of the sites that are not in Templates. Empty and "default" mean Template.
	DefaultTemplateName TemplateName `json:"defaultTemplateName,omitempty"`

	// AutoDeleteUnusedTemplate removes templates from the pool that neither Templates nor DefaultTemplateName
	// name.
	AutoDeleteUnusedTemplate bool `json:"autoDeleteUnusedTemplate,omitempty"`

	// SiteLabel adds the label superedge.io/grid-site, whose value is the site, to the pods and the selector of every
	// workload that the controller creates. Then autoscalers, disruption budgets, network policies and the adoption of
	// orphans tell the sites apart. The default is true. It cannot be changed, because a selector cannot be changed. A
	// workload that existed before keeps its selector and its pods' labels; where true is written here, the condition
	// SpecWarning names these workloads.
	SiteLabel *bool `json:"siteLabel,omitempty"`

	// TolerateUnreachable adds tolerations without a time for the taints node.kubernetes.io/unreachable and
	// node.kubernetes.io/not-ready to the pods, so that a site that was cut off for more than 5 minutes finds its pods
	// still there when it returns. What a template says of these taints stays as it is. A change is part of a revision
	// and replaces the pods, as a change of the template does. Pods of a node that is gone for good stay until the
	// Node is deleted.
	TolerateUnreachable bool `json:"tolerateUnreachable,omitempty"`

	// ProgressDeadlineSeconds is how long a workload that is not as the grid says may make no progress before it counts
	// as Stalled. The default is 600. A Deployment whose own deadline has passed is Stalled at once.
	//
	// +kubebuilder:validation:Minimum=1
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty"`

	// Removal says what happens to the workloads of sites that vanish.
	Removal *Removal `json:"removal,omitempty"`

	// Overrides change the template for some sites. They are applied in this order to the template that a site gets.
	//
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	Overrides []Override `json:"overrides,omitempty"`

	// Rollout is how a change of templates and overrides reaches the sites. Without it, all sites get the change at
	// once.
	Rollout *Rollout `json:"rollout,omitempty"`

	// RevisionHistoryLimit is how many revisions that no site has are kept for an undo; 10 if it is left out. Revisions
	// are kept of grids with a rollout.
	//
	// +kubebuilder:validation:Minimum=0
	RevisionHistoryLimit *int32 `json:"revisionHistoryLimit,omitempty"`
}

// Removal says what happens to the workloads of sites that vanish: no node has their value of the label any more.
type Removal struct {
	// Policy is Delete, which removes the workload after the grace time, or Retain, which never does. Delete is the
	// default.
	//
	// +kubebuilder:validation:Enum=Delete;Retain
	Policy RemovalPolicy `json:"policy,omitempty"`

	// GraceSeconds is how long the workload outlives the last node of its site. The default is the controller's
	// --site-removal-grace, which is 300 unless set.
	//
	// +kubebuilder:validation:Minimum=0
	GraceSeconds *int32 `json:"graceSeconds,omitempty"`

	// MaxSites is how many sites may vanish, be scaled to 0, or lose or gain an override because labels of nodes
	// changed, within 24 hours, as a number or as a percentage of all sites. The default is 10%. One site always may.
	// If there are more, none of them is changed until someone approves of it.
	//
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == string ? self.matches('^(100|[0-9]{1,2})%$') : int(self) >= 0",message="must be a number or a percentage from 0% to 100%"
	MaxSites *intstr.IntOrString `json:"maxSites,omitempty"`
}

// RemovalPolicy says whether the workloads of vanished sites are deleted.
type RemovalPolicy string

const (
	// RemovalDelete deletes the workload of a site that has vanished, after the grace time.
	RemovalDelete RemovalPolicy = "Delete"
	// RemovalRetain keeps the workload of a site that has vanished.
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

// SitePhase is the phase of a site's workload.
type SitePhase string

const (
	// SiteReady means that the workload is as the grid says, and that all of its pods are ready.
	SiteReady SitePhase = "Ready"
	// SiteProgressing means that the workload was created or changed, and that its controller has not finished yet.
	SiteProgressing SitePhase = "Progressing"
	// SiteStalled means that the workload makes no progress any more, or that its controller reports a failure; Reason
	// and Message say why.
	SiteStalled SitePhase = "Stalled"
	// SiteUnreachable means that the control plane has lost contact with all nodes of the site: the site is offline.
	SiteUnreachable SitePhase = "Unreachable"
	// SiteRetained means that no node is in the site any more, and that its workload stays because spec.removal says
	// so.
	SiteRetained SitePhase = "Retained"
	// SiteFailed means that the workload cannot be made as the grid says; Reason and Message say why.
	SiteFailed SitePhase = "Failed"
	// SiteHeld means that the workload's annotation superedge.io/hold keeps the controller from changing it. Message is
	// the annotation's value.
	SiteHeld SitePhase = "Held"
	// SiteRemoving means that no node is in the site any more, and that its workload is deleted at RemovalTime.
	SiteRemoving SitePhase = "Removing"
)

// SiteState is the state of one site's workload. The counts have the names that they have in the workload's own status.
type SiteState struct {
	Phase SitePhase `json:"phase"`
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
	// RemovalTime is when the workload of a site that has vanished is deleted.
	RemovalTime *metav1.Time `json:"removalTime,omitempty"`
	// RemovalApproved is set if someone has approved the removal of many sites, this one among them.
	RemovalApproved bool `json:"removalApproved,omitempty"`
	// ProgressTime is when a workload that is not ready last made progress.
	ProgressTime *metav1.Time `json:"progressTime,omitempty"`
}

// SiteLoss is a site that has lost something, and when.
type SiteLoss struct {
	Site string      `json:"site"`
	Time metav1.Time `json:"time"`
}

// WorkloadGridStatus is the status of the grids of workloads.
type WorkloadGridStatus struct {
	// ObservedGeneration is the generation of the spec that this status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Sites is the number of sites.
	Sites int32 `json:"sites"`
	// ReadySites is the number of sites whose workload is ready.
	ReadySites int32 `json:"readySites"`
	// UnreachableSites is the number of sites whose nodes are all unreachable. They count neither as ready nor as
	// failed.
	UnreachableSites int32 `json:"unreachableSites,omitempty"`
	// FailedSites is the number of sites whose workload is Failed or Stalled.
	FailedSites int32 `json:"failedSites,omitempty"`
	// GridUniqKey is the key of the node label that the workloads follow. It differs from the spec's while a change of
	// the key waits for an approval.
	GridUniqKey string `json:"gridUniqKey,omitempty"`
	// States has the states of the sites by value of the node label, including vanished sites that still have a
	// workload. For grids with more than 500 sites the ready ones are left out.
	//
	// +mapType=atomic
	States map[string]SiteState `json:"states,omitempty"`
	// UnlistedReadySites is the number of ready sites that are left out of States.
	UnlistedReadySites int32 `json:"unlistedReadySites,omitempty"`
	// UnlistedSites is the number of sites that are not ready, and are left out of States because the object would
	// become too large.
	UnlistedSites int32 `json:"unlistedSites,omitempty"`
	// Losses are the sites whose workload was removed or scaled to 0, or whose overrides changed with labels of nodes,
	// within the last 24 hours, without an approval. They count against spec.removal.maxSites.
	//
	// +listType=atomic
	Losses []SiteLoss `json:"losses,omitempty"`
	// CurrentRevision is the revision that ran in all sites last: what the last complete rollout gave to them. New
	// sites get it until their wave begins.
	CurrentRevision string `json:"currentRevision,omitempty"`
	// UpdateRevision is the revision of the spec. Revisions are names of ControllerRevisions.
	UpdateRevision string `json:"updateRevision,omitempty"`
	// Rollout is the progress of the rollout of the updateRevision.
	Rollout *RolloutStatus `json:"rollout,omitempty"`
	// Conditions are Ready, Available, Progressing, Stalled and Degraded, and SpecWarning if there is a warning.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of the grids' conditions.
const (
	// ConditionReady is True when the workloads of all reachable sites are ready, and Unknown if no site is reachable.
	ConditionReady = "Ready"
	// ConditionAvailable is True when every reachable site has enough available pods, even while a change is being
	// rolled out.
	ConditionAvailable = "Available"
	// ConditionStalled is True when a workload makes no progress any more. Tools that use kstatus stop waiting then.
	ConditionStalled = "Stalled"
	// ConditionSpecWarning is True when something in the spec has no effect, which is probably a typing error.
	ConditionSpecWarning = "SpecWarning"
	// ConditionProgressing is True while a workload is being created, changed or removed.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True when a site cannot be what the grid says, and someone has to correct that.
	ConditionDegraded = "Degraded"
)

// DeploymentGrid makes one Deployment per site.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=13"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=dg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Sites",type=integer,JSONPath=".status.sites"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readySites"
// +kubebuilder:printcolumn:name="Unreachable",type=integer,priority=1,JSONPath=".status.unreachableSites"
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

// StatefulSetGrid makes one StatefulSet per site.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=13"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=ssg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Sites",type=integer,JSONPath=".status.sites"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readySites"
// +kubebuilder:printcolumn:name="Unreachable",type=integer,priority=1,JSONPath=".status.unreachableSites"
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

// DaemonSetGrid makes one DaemonSet per site.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=13"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=dsg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Sites",type=integer,JSONPath=".status.sites"
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=".status.readySites"
// +kubebuilder:printcolumn:name="Unreachable",type=integer,priority=1,JSONPath=".status.unreachableSites"
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

	// FallbackKeys are the keys of further node labels, in order of preference, for sites without a ready pod: the
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
	// Sites is the number of sites. Each reaches only its own pods through the Service.
	Sites int32 `json:"sites"`
	// Conditions are Ready, Progressing and Degraded.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServiceGrid makes one Service through which every node reaches only the endpoints of its own site.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:annotations="superedge.io/crd-version=13"
// +kubebuilder:metadata:labels="app.kubernetes.io/name=application-grid-crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/component=crds"
// +kubebuilder:metadata:labels="app.kubernetes.io/part-of=application-grid"
// +kubebuilder:resource:shortName=sg,categories={grids}
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=".spec.gridUniqKey"
// +kubebuilder:printcolumn:name="Sites",type=integer,JSONPath=".status.sites"
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
