package takeover

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/test/suite"
)

// TestBeside: the shipped manifests have no object in common with SuperEdge's, so that applying or deleting them
// changes nothing of what SuperEdge runs; and in the images the programs are where SuperEdge's manifests start them.
func TestBeside(t *testing.T) {
	root := suite.Repository(t)
	data, err := os.ReadFile("superedge.yaml")
	suite.Must(t, err)
	theirs, commands := map[string]bool{}, map[string]string{}
	for document := range strings.SplitSeq(string(data), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		theirs[identity(object)] = true
		containers, _, _ := unstructured.NestedSlice(object.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			container, ok := c.(map[string]any)
			command, _, err := unstructured.NestedStringSlice(container, "command")
			if !ok || err != nil || len(command) == 0 {
				t.Fatalf("a container without a command: %v", c)
			}
			commands[fmt.Sprint(container["name"])] = command[0]
		}
	}
	if len(theirs) < 15 || len(commands) != 3 {
		t.Fatalf("only %v and %v", theirs, commands)
	}
	for name, command := range commands {
		i, err := ourImage(filepath.Join(root, "build", name+".Dockerfile"), "program")
		suite.Must(t, err)
		if i.files[command] == "" {
			t.Errorf("the image of %s has no %s: %v", name, command, i.files)
		}
		ours, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
			filepath.Join(root, "manifests", name))
		suite.Must(t, err)
		for _, resource := range ours.Resources() {
			object, err := resource.Map()
			suite.Must(t, err)
			if id := identity(&unstructured.Unstructured{Object: object}); theirs[id] {
				t.Errorf("manifests/%s takes the place of SuperEdge's %s", name, id)
			}
		}
	}
}

func identity(object *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
}
