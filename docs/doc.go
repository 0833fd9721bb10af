// Package docs has no code, only tests that compare the documentation, which is the *.md files of this directory and of
// dev, with the rest of the repository.
package docs
