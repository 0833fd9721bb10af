package main

import (
	"testing"

	"github.com/application-grid/application-grid/pkg/program/flags/flagstest"
)

func TestFlagsOfSuperEdge(t *testing.T) {
	o := newOptions()
	if err := o.flags.Parse(nil); err != nil {
		t.Fatal(err)
	}
	flagstest.CompareWithSuperEdge(t, "application-grid-wrapper", o.flags)
}
