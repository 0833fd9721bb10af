package flags

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// UsageError is a command line that is wrong. The program ends with ExitUsage and names --help.
type UsageError struct{ error }

// Usage makes an error a UsageError; nil stays nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return UsageError{err}
}

// Unwrap returns the error without the mark.
func (e UsageError) Unwrap() error { return e.error }

// UsageArgs makes what check finds wrong with the arguments a UsageError.
func UsageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return Usage(check(cmd, args)) }
}

// Command makes the program's command line. Its flags are those of p.Flags, in their sections; --help, the commands
// help and completion, and the completion of flags are cobra's.
func (p Program) Command() *cobra.Command {
	return p.command(func() {})
}

// command makes the command line. It calls chosen if the program is to run, and not one of its commands.
func (p Program) command(chosen func()) *cobra.Command {
	p.Flags.merge()
	name := p.Flags.all.Name()
	root := &cobra.Command{
		Use:               name,
		Short:             p.Short,
		Long:              p.Introduction,
		SilenceErrors:     true,
		SilenceUsage:      true,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: UsageArgs(func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: only flags are taken", args[0])
			}
			return nil
		}),
		Run: func(*cobra.Command, []string) { chosen() },
	}
	root.Flags().SortFlags = false
	root.Flags().AddFlagSet(p.Flags.all)
	AddHelp(root.Flags())
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		writeHelp(cmd.OutOrStdout(), cmd, p.Flags)
	})
	if root.Flags().Lookup(logFormatFlag) != nil {
		CompleteWith(root, logFormatFlag, logFormatText, logFormatJSON)
	}
	root.AddCommand(p.Commands...)
	return root
}

// flagError passes on that help is wanted, and marks all else as wrong.
func flagError(_ *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return Usage(err)
}

// AddHelp adds --help and -h, which end the reading of the command line where they are, whatever follows. cobra's own
// --help would let a mistake behind it win.
func AddHelp(to *pflag.FlagSet) {
	to.VarPF(helpFlag{}, "help", "h", "Print this text and exit.").NoOptDefVal = "true"
}

type helpFlag struct{}

func (helpFlag) String() string { return "false" }

// Type is the one as which cobra reads --help.
func (helpFlag) Type() string { return "bool" }

func (helpFlag) Set(string) error { return pflag.ErrHelp }

// writeHelp writes the text of --help. It uses no template: with text/template in a program, the linker keeps every
// exported method of every type.
func writeHelp(out io.Writer, cmd *cobra.Command, set *Set) {
	fmt.Fprintf(out, "%s\n\nUsage:\n  %s\n", strings.TrimSpace(cmp.Or(cmd.Long, cmd.Short)), usageLine(cmd))
	if cmd.Example != "" {
		fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprint(out, "\nCommands:\n")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(out, "  %-*s  %s\n", cmd.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if !cmd.HasParent() {
		cliflag.PrintSections(out, set.sections, columns)
		return
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(out, "\nFlags:\n%s", cmd.LocalFlags().FlagUsagesWrapped(columns))
	}
}

// usageLine is how the command is called. A command with commands of its own and no work is not called with flags.
func usageLine(cmd *cobra.Command) string {
	if !cmd.Runnable() {
		return cmd.CommandPath() + " COMMAND"
	}
	return cmd.UseLine()
}

// CompleteWith completes the values of a flag of the command with these, and not with the names of files.
func CompleteWith(cmd *cobra.Command, flag string, values ...string) {
	Complete(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// Complete completes the values of a flag that the caller has just bound.
func Complete(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(err)
	}
}
