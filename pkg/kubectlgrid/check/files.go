package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	doc.err = c.API.Get(ctx, client.ObjectKey{Namespace: about.Namespace, Name: about.Name}, object)
	c.lost(about, client.IgnoreNotFound(doc.err), consequence)
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
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		inside, in := strings.CutPrefix(name+"/", strings.TrimSuffix(mount.MountPath, "/")+"/")
		if i < 0 || !in {
			continue
		}
		for _, source := range sourcesOf(namespace, &pod.Volumes[i]) {
			key, has := source.key(path.Join(mount.SubPath, inside))
			if !has {
				continue
			}
			doc := c.document(ctx, source.Object, "which server a kube-proxy asks is not known")
			if doc.err != nil {
				return "", doc, fmt.Errorf("%s: %w", doc.about, doc.err)
			}
			if text, ok := doc.data[key]; ok {
				return text, doc, nil
			}
		}
	}
	return "", nil, errors.New("it is a file on the node, which the API server does not show")
}

// source is a ConfigMap or Secret in a volume; items has the paths of its keys, nil if every key is a file.
type source struct {
	Object

	items []corev1.KeyToPath
}

// key returns the key of a file in the volume.
func (s source) key(file string) (key string, has bool) {
	for _, item := range s.items {
		if item.Path == file {
			return item.Key, true
		}
	}
	return file, len(s.items) == 0
}

func sourcesOf(namespace string, volume *corev1.Volume) []source {
	var sources []source
	add := func(kind, name string, items []corev1.KeyToPath) {
		sources = append(sources, source{named(kind, namespace, name), items})
	}
	if from := volume.ConfigMap; from != nil {
		add(kindConfigMap, from.Name, from.Items)
	}
	if from := volume.Secret; from != nil {
		add("Secret", from.SecretName, from.Items)
	}
	if volume.Projected == nil {
		return sources
	}
	for _, projected := range volume.Projected.Sources {
		if from := projected.ConfigMap; from != nil {
			add(kindConfigMap, from.Name, from.Items)
		}
		if from := projected.Secret; from != nil {
			add("Secret", from.Name, from.Items)
		}
	}
	return sources
}
