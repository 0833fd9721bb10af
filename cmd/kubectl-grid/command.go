package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // whatever logs users in to their clusters
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/program/version"
)

// exitProblems is the exit code when the question was answered, and the answer is that something is wrong. Both
// `kubectl diff` and `systemctl status` tell the answer so, and a script can wait for 0; a failure to ask is
// flags.ExitFailure.
const exitProblems = 3

// exitPerson is the exit code of rollout status where the rollout waits for a person.
const exitPerson = 4

// exitCodes is what --help says of them.
const exitCodes = `
Exit codes: 0 no failure was found, and what cannot be seen is counted; 1 something could not be read; 2 the command
line is wrong; 3 a failure was found.`

// exitError ends a command with this exit code. Why has been printed.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

const (
	errProblems   exitError = exitProblems
	errUnanswered exitError = flags.ExitFailure
)

// ending is how a command ends whose answer has been printed.
func ending(failed, complete bool) error {
	switch {
	case failed:
		return errProblems
	case !complete:
		return errUnanswered
	}
	return nil
}

// command is what all subcommands use.
type command struct {
	stdout, stderr io.Writer
	// kubeconfig and overrides are the flags of the connection to the API server.
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage flags.UsageError
	var exit exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, rollout.ErrPerson):
		fmt.Fprintf(stderr, "error: %v\n", err)
		return exitPerson
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "error: %v\nSee 'kubectl grid --help' for usage.\n", err)
		return flags.ExitUsage
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	if errors.As(err, &unanswered{}) {
		return flags.ExitUsage
	}
	return flags.ExitFailure
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	c := &command{stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "kubectl-grid",
		Short: "Show the state of grids, and what the sites see of a Service",
		Long: "kubectl grid shows the state of application-grid's grids, site by site, what a change of them would\n" +
			"do, and what the nodes of every site see of a Service.\n" + exitCodes +
			" diff has those\nof kubectl diff, and rollout status one more.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl grid"},
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          flags.UsageArgs(noCommand),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("kubectl-grid {{.Version}}\n")
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flags.Usage(err) })
	f := root.PersistentFlags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "Path to the kubeconfig file to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s" // as kubectl has it
	clientcmd.BindOverrideFlags(&c.overrides, f, names)
	// Without the short -v, which is verbosity to users of kubectl.
	root.Flags().Bool("version", false, "Print the version and exit")
	for _, name := range []string{"namespace", "context", "cluster", "user"} { // names of no files
		if err := root.RegisterFlagCompletionFunc(name, c.completeFlag(name)); err != nil {
			panic(err) // the flag is bound above
		}
	}
	root.AddCommand(newStatusCommand(c), newViewCommand(c), newDiffCommand(c), newKubeconfigCommand(c),
		newCheckCommand(c), newProveCommand(c), newPreviewCommand(c), newDashboardCommand(c), newRolloutCommand(c),
		newLogsCommand(c), newExecCommand(c), newOptionsCommand())
	// As kubectl has it: a command's help has its own flags, and one command those that all have.
	root.SetUsageTemplate(strings.NewReplacer("HasAvailableLocalFlags", "LocalNonPersistentFlags.HasAvailableFlags",
		".LocalFlags", ".LocalNonPersistentFlags", "\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | "+
			"trimTrailingWhitespaces}}", "\n\nUse \"kubectl grid options\" for the flags that all "+
			"commands have.").Replace(
		root.UsageTemplate()))
	return root
}

func newOptionsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "options", Short: "Print the flags that all commands have", ValidArgsFunction: cobra.NoFileCompletions,
		Args: flags.UsageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "These flags can be given to any command:\n\n%s",
				cmd.Root().PersistentFlags().FlagUsages())
			return err
		},
	}
}

// noCommand is the error of a command that there is not, with those that may be meant.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q", args[0])
	if meant := cmd.SuggestionsFor(args[0]); len(meant) > 0 {
		text += "; did you mean " + strings.Join(meant, " or ") + "?"
	}
	return errors.New(text)
}

// The formats that are the files to install with on a cluster.
const (
	formatKustomization output.Format = "kustomization"
	formatValues        output.Format = "values"
)

func bindOutput(cmd *cobra.Command, to *output.Format, formats ...output.Format) {
	value := &outputValue{to: to}
	for _, format := range formats {
		value.formats = append(value.formats, string(format))
	}
	*to = formats[0]
	cmd.Flags().VarP(value, "output", "o", "Output format: "+value.list())
	flags.CompleteWith(cmd, "output", value.formats...)
}

// outputValue is a format as a flag that takes some formats only.
type outputValue struct {
	to      *output.Format
	formats []string
}

// list is the formats as a sentence names them. There is more than one.
func (v *outputValue) list() string {
	last := len(v.formats) - 1
	return strings.Join(v.formats[:last], ", ") + " or " + v.formats[last]
}

// String implements pflag.Value.
func (v *outputValue) String() string { return string(*v.to) }

// Type implements pflag.Value.
func (v *outputValue) Type() string { return "format" }

// Set implements pflag.Value.
func (v *outputValue) Set(text string) error {
	if !slices.Contains(v.formats, text) {
		return fmt.Errorf("must be %s", v.list())
	}
	*v.to = output.Format(text)
	return nil
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// loader reads the kubeconfig, as kubectl does.
func (c *command) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.DefaultClientConfig = &clientcmd.DefaultClientConfig
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides)
}

// connect makes the connection to the API server, and returns the namespace to ask for.
func (c *command) connect() (cluster.Cluster, string, error) {
	loader := c.loader()
	config, err := loader.ClientConfig()
	if err != nil {
		return cluster.Cluster{}, "", err
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return cluster.Cluster{}, "", err
	}
	connected, err := cluster.Connect(config, c.stderr)
	return connected, namespace, err
}
