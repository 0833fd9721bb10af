// Package flags has what the command lines of all programs share: a cobra command with its completion, flags in
// sections with headings (component-base's named flag sets), klog's flags, the format of the log, a --help that wraps,
// exit codes, and a clear error for an argument that is not a flag.
//
// What a flag means belongs to the program that has it.
package flags
