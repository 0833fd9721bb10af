package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// document is a ConfigMap or a Secret.
type document struct {
	about   Object
	data    map[string]string
	changed time.Time
	err     error
}

// document reads a ConfigMap or Secret, once. If it exists, and cannot be read, that has a consequence.
func (c *Cluster) document(ctx context.Context, about Object, consequence string) *document {
	if known := c.documents[about]; known != nil {
		return known
	}
	doc := &document{about: about, data: map[string]string{}}
	c.documents[about] = doc
	configMap, secret := &corev1.ConfigMap{}, &corev1.Secret{}
	object := client.Object(configMap)
	if about.Kind != kindConfigMap {
		object = secret
	}
	key := client.ObjectKey{Namespace: about.Namespace, Name: about.Name}
	if doc.err = c.API.Get(ctx, key, object); doc.err != nil {
		if !apierrors.IsNotFound(doc.err) {
			c.lost(about, doc.err, consequence)
		}
		return doc
	}
	maps.Copy(doc.data, configMap.Data)
	for name, data := range secret.Data {
		doc.data[name] = string(data)
	}
	doc.changed = changed(object)
	return doc
}

// changed returns when someone last wrote the object, as far as its metadata show.
func changed(object metav1.Object) time.Time {
	latest := object.GetCreationTimestamp().Time
	for _, entry := range object.GetManagedFields() {
		if entry.Time != nil && entry.Time.After(latest) {
			latest = entry.Time.Time
		}
	}
	return latest
}

// file returns the text of a file of kube-proxy's container, if it is from a ConfigMap or Secret.
func (c *Cluster) file(ctx context.Context, namespace string, pod *corev1.PodSpec, mounts []corev1.VolumeMount,
	name string) (string, *document, error) {
	for _, mount := range mounts {
		if name != mount.MountPath && !strings.HasPrefix(name, strings.TrimSuffix(mount.MountPath, "/")+"/") {
			continue
		}
		for _, volume := range pod.Volumes {
			if volume.Name != mount.Name {
				continue
			}
			inside := path.Join(mount.SubPath, strings.TrimPrefix(strings.TrimPrefix(name, mount.MountPath), "/"))
			for _, source := range sourcesOf(&volume) {
				key, mapped := source.keys[inside]
				if !mapped && source.keys != nil {
					continue
				}
				if !mapped {
					key = inside
				}
				doc := c.document(ctx, named(source.kind, namespace, source.name),
					"which server a kube-proxy asks is not known")
				if doc.err != nil {
					return "", doc, fmt.Errorf("%s: %w", doc.about, doc.err)
				}
				if text, ok := doc.data[key]; ok {
					return text, doc, nil
				}
			}
		}
	}
	return "", nil, errors.New("it is a file on the node, which the API server does not show")
}

// source is a ConfigMap or Secret in a volume; keys are its keys by the names of the files, nil if every key is a file.
type source struct {
	kind, name string
	keys       map[string]string
}

func sourcesOf(volume *corev1.Volume) []source {
	var sources []source
	add := func(kind, name string, items []corev1.KeyToPath) {
		s := source{kind: kind, name: name}
		if len(items) > 0 {
			s.keys = map[string]string{}
			for _, item := range items {
				s.keys[item.Path] = item.Key
			}
		}
		sources = append(sources, s)
	}
	if volume.ConfigMap != nil {
		add("ConfigMap", volume.ConfigMap.Name, volume.ConfigMap.Items)
	}
	if volume.Secret != nil {
		add("Secret", volume.Secret.SecretName, volume.Secret.Items)
	}
	if volume.Projected != nil {
		for _, projected := range volume.Projected.Sources {
			if projected.ConfigMap != nil {
				add("ConfigMap", projected.ConfigMap.Name, projected.ConfigMap.Items)
			}
			if projected.Secret != nil {
				add("Secret", projected.Secret.Name, projected.Secret.Items)
			}
		}
	}
	return sources
}
