// Package docstest compares the documentation with the programs. Only tests import it.
package docstest
