// Package docs has no code, only the tests that hold the documentation against the rest of the repository. The pages
// are the *.md files beside.
package docs
