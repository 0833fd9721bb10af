package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/flags"
)

// helpWidth is the column at which the help of flags wraps.
const helpWidth = 110

// subcommand is a command of the program that answers and ends, such as explain.
type subcommand struct {
	name, introduction string
	flags              *pflag.FlagSet
	// check reads the arguments that are no flags, and checks all. Its errors are about the command line.
	check func(args []string) error
	run   func() error
}

// main reads the command line, runs the command, and returns the exit code.
func (s subcommand) main(args []string, stdout, stderr io.Writer) int {
	err := s.flags.Parse(args)
	if err == nil {
		err = s.check(s.flags.Args())
	}
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, s.introduction+s.flags.FlagUsagesWrapped(helpWidth))
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%s %s: %v\nRun %s %s --help for all flags.\n", program, s.name, err, program, s.name)
		return flags.ExitUsage
	}
	if err := s.run(); err != nil {
		fmt.Fprintf(stderr, "%s %s: %v\n", program, s.name, err)
		return flags.ExitFailure
	}
	return 0
}
