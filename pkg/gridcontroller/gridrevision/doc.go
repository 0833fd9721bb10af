// Package gridrevision defines revisions of grids: the templates and overrides of a spec in canonical form, a name that
// is derived from them, and the ControllerRevision that stores them. It does no I/O. The controller makes revisions and
// rolls them out; kubectl grid shows and restores them.
package gridrevision
