package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
)

// completionLimit is how long a user who presses Tab waits for the API server.
const completionLimit = 3 * time.Second

// complete turns a function that returns names into a completion without names of files.
func complete(names func(cmd *cobra.Command, args []string, word string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return names(cmd, args, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// gridArguments completes the arguments of status: KIND/NAME, or KIND and then names.
func (c *command) gridArguments(cmd *cobra.Command, args []string, word string) []string {
	first, given := word, args
	if len(args) > 0 {
		first, given = args[0], args[1:]
	}
	kind, _, begun := strings.Cut(first, "/")
	if len(args) == 0 && !begun {
		plurals := make([]string, 0, len(v1.Kinds))
		for _, k := range v1.Kinds {
			plurals = append(plurals, k.Plural)
		}
		return plurals
	}
	k, err := cluster.ParseKind(kind)
	if err != nil || len(args) > 0 && begun {
		return nil
	}
	prefix := ""
	if begun {
		prefix = kind + "/"
	}
	return slices.DeleteFunc(c.names(cmd, v1.GroupVersion.WithKind(k.Kind), prefix),
		func(name string) bool { return slices.Contains(given, name) })
}

// serviceArgument completes the argument of view.
func (c *command) serviceArgument(cmd *cobra.Command, args []string, word string) []string {
	if len(args) > 0 {
		return nil
	}
	services, prefix := corev1.SchemeGroupVersion.WithKind("Service"), ""
	if kind, _, ok := strings.Cut(word, "/"); ok {
		prefix = kind + "/"
		if k, err := cluster.ParseKind(kind); err == nil {
			services = v1.GroupVersion.WithKind(k.Kind)
		}
	}
	return c.names(cmd, services, prefix)
}

// completeFlag completes the values of the flags of the connection.
func (c *command) completeFlag(name string) cobra.CompletionFunc {
	return complete(func(cmd *cobra.Command, _ []string, _ string) []string {
		if name == "namespace" {
			return c.names(cmd, corev1.SchemeGroupVersion.WithKind("Namespace"), "")
		}
		config, err := c.loader().RawConfig()
		if err != nil {
			return nil
		}
		switch name {
		case "context":
			return slices.Sorted(maps.Keys(config.Contexts))
		case "cluster":
			return slices.Sorted(maps.Keys(config.Clusters))
		default:
			return slices.Sorted(maps.Keys(config.AuthInfos))
		}
	})
}

// names are those of all objects of a kind, after a prefix; none if they cannot be read, as a completion has no place
// for an error.
func (c *command) names(cmd *cobra.Command, kind schema.GroupVersionKind, prefix string) []string {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	connected, namespace, err := c.connect()
	if err != nil {
		return nil
	}
	if kind.Kind == "Namespace" {
		namespace = ""
	}
	list := pages.Metadata(kind)
	if err := connected.API.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, prefix+list.Items[i].Name)
	}
	return names
}
