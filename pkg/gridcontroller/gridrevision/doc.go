// Package gridrevision knows what a revision of a grid is: the templates and overrides of its spec in canonical form,
// the name that follows from them, and the ControllerRevision that keeps them. It reads and writes nothing. The
// controller makes revisions and rolls them out; kubectl grid shows them and goes back to them.
package gridrevision
