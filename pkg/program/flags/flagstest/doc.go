// Package flagstest compares a program's flags with the documentation. Only tests import it.
package flagstest
