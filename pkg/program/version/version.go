package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is stamped by the linker (see the Makefile).
var version = ""

// String is the version, the commit and the Go release of this build.
func String() string {
	v, commit := version, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, info.Main.Version)
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				commit = " " + setting.Value
			}
		}
	}
	return fmt.Sprintf("%s%s %s %s/%s", v, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
