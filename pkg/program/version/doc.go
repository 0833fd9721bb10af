// Package version has the version that the build stamped into the program.
package version
