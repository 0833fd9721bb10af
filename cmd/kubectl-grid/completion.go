package main

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/program/pages"
)

// completionLimit is how long a user who presses Tab waits for the API server.
const completionLimit = 3 * time.Second

// complete turns a function that returns names into a completion without names of files.
func complete(names func(cmd *cobra.Command, args []string, word string) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return names(cmd, args, word), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeConnection completes the flags of the connection. Of all flags and arguments, only four of them and the files
// of diff are names of files.
func (c *command) completeConnection(root *cobra.Command) {
	root.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	for _, name := range []string{"kubeconfig", clientcmd.FlagCAFile, clientcmd.FlagCertFile, clientcmd.FlagKeyFile} {
		flags.Complete(root, name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	}
	for _, name := range []string{clientcmd.FlagContext, clientcmd.FlagClusterName, clientcmd.FlagAuthInfoName} {
		flags.Complete(root, name, complete(func(*cobra.Command, []string, string) []string {
			config, _ := c.loader().RawConfig() // empty if it cannot be read
			return slices.Sorted(map[string]iter.Seq[string]{
				clientcmd.FlagContext:      maps.Keys(config.Contexts),
				clientcmd.FlagClusterName:  maps.Keys(config.Clusters),
				clientcmd.FlagAuthInfoName: maps.Keys(config.AuthInfos),
			}[name])
		}))
	}
	flags.Complete(root, clientcmd.FlagNamespace, complete(c.namespaces))
}

func (c *command) namespaces(cmd *cobra.Command, _ []string, _ string) []string {
	return c.names(cmd, corev1.SchemeGroupVersion.WithKind("Namespace"), "")
}

// gridArguments completes the arguments of status: KIND/NAME, or KIND and then names.
func (c *command) gridArguments(cmd *cobra.Command, args []string, word string) []string {
	kind, _, prefixed := strings.Cut(word, "/")
	prefix := kind + "/"
	switch {
	case len(args) > 0:
		kind, prefix, args = args[0], "", args[1:]
	case !prefixed:
		plurals := make([]string, 0, len(v1.Kinds))
		for _, k := range v1.Kinds {
			plurals = append(plurals, k.Plural)
		}
		return plurals
	}
	k, err := cluster.ParseKind(kind)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(c.names(cmd, v1.GroupVersion.WithKind(k.Kind), prefix),
		func(name string) bool { return slices.Contains(args, name) })
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

// names are those of all objects of a kind, after a prefix; none if they cannot be read, as a completion has no place
// for an error.
func (c *command) names(cmd *cobra.Command, kind schema.GroupVersionKind, prefix string) []string {
	if c.connect() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionLimit)
	defer cancel()
	list := pages.Metadata(kind)
	if c.API.List(ctx, list, client.InNamespace(c.namespace)) != nil {
		return nil
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, prefix+list.Items[i].Name)
	}
	return names
}
