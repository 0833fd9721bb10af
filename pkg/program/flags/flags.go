package flags

import (
	"flag"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

// columns is the width of --help.
const columns = 110

// Set is a program's flags.
type Set struct {
	all      *pflag.FlagSet
	sections cliflag.NamedFlagSets
	// logFormat is --logging-format, version is --version.
	logFormat string
	version   bool
}

// New makes the Set of a program, without flags.
func New(program string) *Set {
	s := &Set{all: pflag.NewFlagSet(program, pflag.ContinueOnError)}
	s.all.SortFlags = false
	s.all.Usage = func() {}
	return s
}

// Section begins a section and returns its flag set, to which the caller adds flags. --help calls it "TITLE flags".
func (s *Set) Section(title string) *pflag.FlagSet {
	f := s.sections.FlagSet(title)
	f.SortFlags = false
	return f
}

// Logging adds the section of the log: its format, and klog's flags. All of klog's flags work with the format text;
// --help shows only -v and --vmodule.
func (s *Set) Logging() {
	f := s.Section("Logging")
	f.StringVar(&s.logFormat, logFormatFlag, logFormatText,
		"Format of the log: text, or json with an object per line, as Kubernetes' own programs write it.")
	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	klogFlags.VisitAll(func(g *flag.Flag) {
		f.AddGoFlag(g)
		if g.Name != "v" && g.Name != "vmodule" {
			f.Lookup(g.Name).Hidden = true
		}
	})
}

// merge gathers the flags of all sections. The last section has --version, which all programs have.
func (s *Set) merge() {
	if s.sections.FlagSets["Other"] == nil {
		s.Section("Other").BoolVar(&s.version, "version", false, "Print the version and exit.")
	}
	for _, title := range s.sections.Order {
		s.all.AddFlagSet(s.sections.FlagSets[title])
	}
}

// Lookup finds a flag of a command line that was read; nil if it does not exist.
func (s *Set) Lookup(name string) *pflag.Flag { return s.all.Lookup(name) }

// VisitSections calls visit for every section, in the order of --help.
func (s *Set) VisitSections(visit func(title string, flags *pflag.FlagSet)) {
	s.merge()
	for _, title := range s.sections.Order {
		visit(title, s.sections.FlagSets[title])
	}
}

// ignored begins the usage of flags that have lost their meaning.
const ignored = "Ignored: "

// Ignored returns a notice for each flag that was given and has lost its meaning.
func (s *Set) Ignored() []string {
	var notices []string
	s.all.VisitAll(func(f *pflag.Flag) {
		if why, found := strings.CutPrefix(f.Usage, ignored); found && f.Changed {
			notices = append(notices, fmt.Sprintf("Ignoring --%s: %s", f.Name, why))
		}
	})
	return notices
}
