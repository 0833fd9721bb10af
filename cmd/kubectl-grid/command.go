package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
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

// ending is how a command ends whose answer has been printed.
func ending(failed, complete bool) error {
	switch {
	case failed:
		return exitError(exitProblems)
	case !complete:
		return exitError(flags.ExitFailure)
	}
	return nil
}

// command is what the commands use. One of them runs.
type command struct {
	stdout, stderr io.Writer
	// kubeconfig and overrides are the flags of the connection to the API server.
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	// Flags and arguments that several commands have. more is what follows the name of a grid.
	output                   output.Format
	allNamespaces, noHeaders bool
	service                  cluster.ServiceName
	name                     rollout.Name
	more                     []string

	// started is set once the command line has been read. An error before that is one of the command line.
	started bool
	// failure is the exit code of an error after that, if it is not flags.ExitFailure.
	failure int
	// The cluster that a command asks, and the namespace to ask for.
	cluster.Cluster
	namespace string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := &command{stdout: stdout, stderr: stderr}
	root := newRoot(c)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[exitError](err); ok {
		return int(exit)
	}
	fmt.Fprintf(stderr, "error: %v\n", err)
	switch {
	case errors.Is(err, rollout.ErrPerson):
		return exitPerson
	case !c.started || errors.As(err, new(flags.UsageError)):
		fmt.Fprintln(stderr, "See 'kubectl grid --help' for usage.")
		return flags.ExitUsage
	}
	return cmp.Or(c.failure, flags.ExitFailure)
}

func newRoot(c *command) *cobra.Command {
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
	}
	root.SetVersionTemplate("kubectl-grid {{.Version}}\n")
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	f := root.PersistentFlags()
	f.StringVar(&c.kubeconfig, "kubeconfig", "", "Path to the kubeconfig file to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s" // as kubectl has it
	clientcmd.BindOverrideFlags(&c.overrides, f, names)
	// Without the short -v, which is verbosity to users of kubectl.
	root.Flags().Bool("version", false, "Print the version and exit")
	c.completeConnection(root)
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
		Use: "options", Short: "Print the flags that all commands have", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			cmd.Printf("These flags can be given to any command:\n\n%s", cmd.Root().PersistentFlags().FlagUsages())
		},
	}
}

// The formats that are the files to install with on a cluster.
const (
	formatKustomization output.Format = "kustomization"
	formatValues        output.Format = "values"
)

// bindOutput adds the flag --output, which takes these formats. The first is the default.
func (c *command) bindOutput(cmd *cobra.Command, formats ...output.Format) {
	c.output = output.Table
	names := make([]string, 0, len(formats))
	for _, format := range formats {
		names = append(names, string(format))
	}
	last := len(names) - 1
	list := strings.Join(names[:last], ", ") + " or " + names[last]
	cmd.Flags().FuncP("output", "o", "Output `format`: "+list, func(name string) error {
		if !slices.Contains(names, name) {
			return fmt.Errorf("must be %s", list)
		}
		c.output = output.Format(name)
		return nil
	})
	cmd.Flags().Lookup("output").DefValue = names[0]
	flags.CompleteWith(cmd, "output", names...)
}

// bindTable adds the flags of a table of objects of a kind in namespaces.
func (c *command) bindTable(cmd *cobra.Command, objects string) {
	f := cmd.Flags()
	f.BoolVarP(&c.allNamespaces, "all-namespaces", "A", false, objects+" of all namespaces")
	f.BoolVar(&c.noHeaders, "no-headers", false, "Print the rows of the table only")
	c.bindOutput(cmd, output.Table, output.Wide, output.JSON, output.YAML)
}

// parseService reads the one argument of a command about a Service.
func (c *command) parseService(_ *cobra.Command, args []string) (err error) {
	if len(args) != 1 {
		return fmt.Errorf("give the name of one Service or ServiceGrid; got %d arguments", len(args))
	}
	c.service, err = cluster.ParseServiceName(args[0])
	return err
}

func (c *command) asking(run func(context.Context) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		c.started = true
		if err := c.connect(); err != nil {
			return err
		}
		return run(cmd.Context())
	}
}

// loader reads the kubeconfig, as kubectl does.
func (c *command) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.DefaultClientConfig = &clientcmd.DefaultClientConfig
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides)
}

// connect makes the connection to the API server.
func (c *command) connect() error {
	loader := c.loader()
	config, err := loader.ClientConfig()
	if err != nil {
		return err
	}
	if c.namespace, _, err = loader.Namespace(); err != nil {
		return err
	}
	if c.allNamespaces {
		c.namespace = ""
	}
	c.Cluster, err = cluster.Connect(config, c.stderr)
	return err
}
