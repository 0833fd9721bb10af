package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// completionLimit is how long a user who presses Tab waits for the API server.
const completionLimit = 3 * time.Second

// completeGrids completes the arguments of status: KIND/NAME, or KIND and then names.
func (c *command) completeGrids(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		k, err := cluster.ParseKind(args[0])
		if err != nil || strings.Contains(args[0], "/") {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := slices.DeleteFunc(c.names(cmd, v1.GroupVersion.WithKind(k.Kind)),
			func(name string) bool { return slices.Contains(args[1:], name) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	if kind, _, ok := strings.Cut(word, "/"); ok {
		k, err := cluster.ParseKind(kind)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := c.names(cmd, v1.GroupVersion.WithKind(k.Kind))
		for i := range names {
			names[i] = kind + "/" + names[i]
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	var plurals []string
	for _, k := range v1.Kinds {
		plurals = append(plurals, k.Plural)
	}
	return plurals, cobra.ShellCompDirectiveNoFileComp
}

// completeServices completes the argument of view.
func (c *command) completeServices(cmd *cobra.Command, args []string, word string) ([]string,
	cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	services, prefix := corev1.SchemeGroupVersion.WithKind("Service"), ""
	if kind, _, ok := strings.Cut(word, "/"); ok {
		prefix = kind + "/"
		if k, err := cluster.ParseKind(kind); err == nil {
			services = v1.GroupVersion.WithKind(k.Kind)
		}
	}
	names := c.names(cmd, services)
	for i := range names {
		names[i] = prefix + names[i]
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeFlag completes the values of the flags that lead to the API server.
func (c *command) completeFlag(name string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		if name == "namespace" {
			return c.names(cmd, corev1.SchemeGroupVersion.WithKind("Namespace")), cobra.ShellCompDirectiveNoFileComp
		}
		config, err := c.loader().RawConfig()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		switch name {
		case "context":
			names = slices.Collect(maps.Keys(config.Contexts))
		case "cluster":
			names = slices.Collect(maps.Keys(config.Clusters))
		case "user":
			names = slices.Collect(maps.Keys(config.AuthInfos))
		}
		slices.Sort(names)
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// names are those of all objects of a kind; none if they cannot be read, as a completion has no place for an error.
func (c *command) names(cmd *cobra.Command, kind schema.GroupVersionKind) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	connected, namespace, err := c.connect()
	if err != nil {
		return nil
	}
	if kind.Kind == "Namespace" {
		namespace = ""
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	names, err := cluster.Names(ctx, connected.API, list, namespace)
	if err != nil {
		return nil
	}
	return names
}
