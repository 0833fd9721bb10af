package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
)

// TestChart: a chart is XML, everything in it is within its bounds, and the figures are those that were given.
func TestChart(t *testing.T) {
	t.Parallel()
	c := chart{title: `A fleet & its "hub"`, panels: []panel{
		{title: "bytes", unit: "kB a node", points: []point{{125, 130, 60}, {250, 255, 110}, {500, 510, 205},
			{1000, 1002, 397}}},
		{title: "bytes a change", unit: "kB a node", points: []point{{125, 5.9, 0.04}, {1000, 5.9, 0.004}}},
		{title: "one point", unit: "", points: []point{{10, 1, 1}}},
	}}
	drawn := c.svg()
	decoder := xml.NewDecoder(strings.NewReader(drawn))
	circles, lines := 0, 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, drawn)
		}
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch element.Name.Local {
		case "circle":
			circles++
		case "polyline":
			lines++
		}
		for _, a := range element.Attr {
			var most float64
			switch a.Name.Local {
			case "x", "x1", "x2", "cx":
				most = panelWidth
			case "y", "y1", "y2", "cy":
				most = panelHeight
			default:
				continue
			}
			if at, err := strconv.ParseFloat(a.Value, 64); err != nil || at < 0 || at > most {
				t.Errorf("<%s %s=%q> is out of its panel", element.Name.Local, a.Name.Local, a.Value)
			}
		}
	}
	if circles != 2*(4+2+1) || lines != 2*3 {
		t.Errorf("%d circles, %d lines", circles, lines)
	}
	for _, want := range []string{"A fleet &amp; its &quot;hub&quot;", "directly 1,000", "hub 397", "hub 0.004",
		"prefers-color-scheme:dark"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("%q is missing in\n%s", want, drawn)
		}
	}
}
