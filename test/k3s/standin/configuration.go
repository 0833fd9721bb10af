package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// configuration are the values of each key.
type configuration map[string][]string

// readConfiguration reads a file and then those of the directory that has its name and ".d", in the order of their
// names. A key of a later file replaces one of an earlier file; with "+" at its end it appends.
func readConfiguration(file string) (configuration, error) {
	files, err := filepath.Glob(file + ".d/*.yaml")
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	c := configuration{}
	for _, name := range append([]string{file}, files...) {
		data, err := os.ReadFile(name) //nolint:gosec // the node's configuration
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := c.add(data); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return c, nil
}

func (c configuration) add(data []byte) error {
	read := map[string]any{}
	if err := yaml.Unmarshal(data, &read); err != nil {
		return err
	}
	for key, value := range read {
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		name, appends := strings.CutSuffix(key, "+")
		if !appends {
			delete(c, name)
		}
		for _, element := range list {
			c[name] = append(c[name], fmt.Sprint(element))
		}
	}
	return nil
}

// first is the first value of a key, or the other.
func (c configuration) first(key, other string) string {
	if values := c[key]; len(values) > 0 {
		return values[0]
	}
	return other
}

// nodeArgs is the annotation k3s.io/node-args.
func (c configuration) nodeArgs(command string) (string, error) {
	args := []string{command}
	for _, key := range keys(c) {
		for _, value := range c[key] {
			args = append(args, "--"+key, value)
		}
	}
	data, err := json.Marshal(args)
	return string(data), err
}

// arguments are flags of a component: the defaults, each replaced by what extra says of the same name.
func arguments(defaults map[string]string, extra []string) []string {
	given := map[string]bool{}
	var args []string
	for _, arg := range extra {
		name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !ok {
			value = "true"
		}
		given[name] = true
		args = append(args, "--"+name+"="+value)
	}
	for _, name := range keys(defaults) {
		if !given[name] {
			args = append(args, "--"+name+"="+defaults[name])
		}
	}
	return args
}
