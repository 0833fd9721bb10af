package lite

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// kind is a kind of object that is kept.
type kind struct {
	schema.GroupVersionResource

	name string
	// getOnly is set for what the Node authorizer lets a node get, but not list or watch
	// (plugin/pkg/auth/authorizer/node/node_authorizer.go of Kubernetes).
	getOnly bool
	// selectable reads the fields that a field selector may use, besides the name and namespace; nil for none.
	selectable func(body []byte) (fields.Set, error)
	newTyped   func() typed
}

// typed is a Go type of k8s.io/api with its protobuf methods.
type typed interface {
	runtime.Object
	Unmarshal(data []byte) error
}

// Type returns the apiVersion and kind of an object.
func (k *kind) Type() wire.TypeMeta {
	return wire.TypeMeta{APIVersion: k.GroupVersion().String(), Kind: k.name}
}

// ListType returns the apiVersion and kind of a list.
func (k *kind) ListType() wire.TypeMeta {
	return wire.TypeMeta{APIVersion: k.GroupVersion().String(), Kind: k.name + "List"}
}

// What the kubelet needs to start pods.
var (
	nodes = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("nodes"), name: "Node",
		newTyped: func() typed { return &corev1.Node{} }}
	pods = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("pods"), name: "Pod",
		newTyped: func() typed { return &corev1.Pod{} }}
	services = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("services"), name: "Service",
		selectable: serviceFields, newTyped: func() typed { return &corev1.Service{} }}
	secrets = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("secrets"), name: "Secret",
		newTyped: func() typed { return &corev1.Secret{} }}
	configMaps = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("configmaps"), name: "ConfigMap",
		newTyped: func() typed { return &corev1.ConfigMap{} }}
	claims = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		name: "PersistentVolumeClaim", getOnly: true,
		newTyped: func() typed { return &corev1.PersistentVolumeClaim{} }}
	volumes = &kind{GroupVersionResource: corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
		name: "PersistentVolume", getOnly: true, newTyped: func() typed { return &corev1.PersistentVolume{} }}
	csiNodes = &kind{GroupVersionResource: storagev1.SchemeGroupVersion.WithResource("csinodes"), name: "CSINode",
		getOnly: true, newTyped: func() typed { return &storagev1.CSINode{} }}
	csiDrivers = &kind{GroupVersionResource: storagev1.SchemeGroupVersion.WithResource("csidrivers"), name: "CSIDriver",
		newTyped: func() typed { return &storagev1.CSIDriver{} }}
	runtimeClasses = &kind{GroupVersionResource: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"),
		name: "RuntimeClass", newTyped: func() typed { return &nodev1.RuntimeClass{} }}

	kinds = []*kind{nodes, pods, services, secrets, configMaps, claims, volumes, csiNodes, csiDrivers, runtimeClasses}
)

// serviceFields are those of Services. The kubelet asks for the Services that have a cluster IP.
func serviceFields(body []byte) (fields.Set, error) {
	values, err := served.Services.Fields(body)
	if err != nil {
		return nil, err
	}
	found := fields.Set{}
	for i, label := range served.Services.FieldLabels {
		found[label] = values[i]
	}
	return found, nil
}

// scope names a set of objects: all that a list of a kind with this namespace and field selector has.
type scope struct {
	kind              *kind
	namespace, fields string
}

// named is the scope of one object.
func named(k *kind, namespace, name string) scope {
	return scope{k, namespace, fields.OneTermEqualSelector("metadata.name", name).String()}
}

// object returns the name of the one object that the scope may have; "" if it may have others.
func (s scope) object() string {
	selector, err := fields.ParseSelector(s.fields)
	if err != nil {
		return ""
	}
	name, _ := selector.RequiresExactMatch("metadata.name")
	return name
}

// selects reports whether an object of the kind is in the scope. The error says what cannot be read.
func (s scope) selects(o *wire.Object) (bool, error) {
	selector, err := fields.ParseSelector(s.fields)
	if err != nil {
		return false, err
	}
	values := fields.Set{}
	if s.kind.selectable != nil {
		if values, err = s.kind.selectable(o.Body); err != nil {
			return false, err
		}
	}
	values["metadata.name"], values["metadata.namespace"] = o.Name, o.Namespace
	for _, requirement := range selector.Requirements() {
		if _, ok := values[requirement.Field]; !ok {
			return false, fmt.Errorf("the field %s of %s is not known", requirement.Field, s.kind.Resource)
		}
	}
	return selector.Matches(values) && (s.namespace == "" || s.namespace == o.Namespace), nil
}

// always are the scopes that a node needs whatever runs on it.
func always(node string) []scope {
	return []scope{
		named(nodes, "", node),
		podsOf(node),
		{kind: services},
		named(csiNodes, "", node),
		{kind: csiDrivers},
		{kind: runtimeClasses},
	}
}

// podsOf is the scope of the node's pods.
func podsOf(node string) scope {
	return scope{pods, "", fields.OneTermEqualSelector("spec.nodeName", node).String()}
}
