package compat

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	siteLabel = "zone1"
	siteA     = "site-a"
	siteB     = "site-b"

	// deadline is how long a change may take to get where it should, on a busy machine that has many nodes.
	deadline = 90 * time.Second
)

// binaries are what the tests run.
type binaries struct {
	components, wrapper, dnsDaemon string
	kubeProxies                    []kubeProxy // in the order of their releases
	coreDNS                        string      // the release among the components
}

// kubeProxy is one release of kube-proxy.
type kubeProxy struct {
	version string
	path    string // empty: among the components
}

// under is what is run.
var under binaries

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "compat: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	if err := suite.Privileged(); err != nil {
		return 1, err
	}
	var err error
	if under, err = findBinaries(); err != nil {
		return 1, err
	}
	code := m.Run()
	fmt.Print("\n", results.markdown(), results.asked())
	// A part of the tests makes a part of the table, which is for reading only.
	document := os.Getenv("COMPAT_DOC")
	if code != 0 || document == "" || flag.Lookup("test.run").Value.String() != "" {
		return code, nil
	}
	return code, results.writeInto(document)
}

// findBinaries looks for what `make compat` builds: bin/ of the repository, or BIN.
func findBinaries() (binaries, error) {
	var found binaries
	bin := os.Getenv("BIN")
	if bin == "" {
		bin = filepath.Join("..", "..", "bin")
	}
	bin, err := filepath.Abs(bin)
	if err != nil {
		return found, err
	}
	found.components = filepath.Join(bin, "components")
	found.wrapper = filepath.Join(bin, "application-grid-wrapper")
	found.dnsDaemon = filepath.Join(bin, "statefulset-grid-daemon")
	modules, err := filepath.Glob("kube-proxy-*")
	if err != nil {
		return found, err
	}
	for _, module := range modules {
		found.kubeProxies = append(found.kubeProxies, kubeProxy{path: filepath.Join(bin, module)})
	}
	found.kubeProxies = append(found.kubeProxies, kubeProxy{})
	for i := range found.kubeProxies {
		if err := found.identify(&found.kubeProxies[i]); err != nil {
			return found, fmt.Errorf("run `make compat`, or name the directory of the binaries in BIN: %w", err)
		}
	}
	slices.SortFunc(found.kubeProxies, func(a, b kubeProxy) int { return a.minor() - b.minor() })
	return found, nil
}

// identify reads from the binaries which releases they are of: what runs is what the table says.
func (b *binaries) identify(proxy *kubeProxy) error {
	path := proxy.path
	if path == "" {
		path = b.components
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	for _, module := range append(info.Deps, &info.Main) {
		if module.Path == "k8s.io/kubernetes" {
			proxy.version = strings.TrimPrefix(module.Version, "v")
		}
		if path == b.components && module.Path == "github.com/coredns/coredns" {
			b.coreDNS = strings.TrimPrefix(module.Version, "v")
		}
	}
	if proxy.version == "" {
		return fmt.Errorf("%s is not made of k8s.io/kubernetes", path)
	}
	return nil
}

// minor is the release as a number that grows: 34 of 1.34.4.
func (p kubeProxy) minor() int {
	var minor int
	if _, err := fmt.Sscanf(p.version, "1.%d.", &minor); err != nil {
		return 0
	}
	return minor
}

// protocols are those in which this release is tried. Before 1.30 none can be chosen.
func (p kubeProxy) protocols() []cluster.Protocol {
	if p.minor() < 30 {
		return []cluster.Protocol{cluster.Unasked}
	}
	return []cluster.Protocol{cluster.WatchList, cluster.ListThenWatch}
}

// modes are those in which this release is tried: nftables came with 1.29, and was no longer a feature to be
// asked for from 1.31 on.
func (p kubeProxy) modes() []cluster.ProxyMode {
	if p.minor() < 31 {
		return []cluster.ProxyMode{cluster.IPTables}
	}
	return []cluster.ProxyMode{cluster.NFTables, cluster.IPTables}
}
