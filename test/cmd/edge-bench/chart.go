package main

import (
	"fmt"
	"math"
	"strings"
)

// chart is some figures against the number of nodes, each in a panel of its own, directly and through the hub.
type chart struct {
	title  string
	panels []panel
}

// panel is one figure. Both axes are logarithmic.
type panel struct {
	title, unit string
	// points are the same numbers of nodes for both ways.
	points []point
}

// point is what was measured with so many nodes.
type point struct{ nodes, directly, hub float64 }

// The sizes of a chart, in its own units.
const (
	panelWidth, panelHeight    = 316, 240
	plotLeft, plotTop          = 52, 50
	plotWidth, plotHeight      = 158, 150
	chartTop                   = 40
	labelOffset, labelDistance = 8, 14
)

// style has colours for light and dark backgrounds; the background itself is the page's.
const style = `<style>
text{font:12px system-ui,sans-serif;fill:#57606a}
.title{font-size:14px;font-weight:600;fill:#24292f}
.name{font-weight:600;fill:#24292f}
.grid{stroke:#d0d7de;stroke-width:1}
.directly{stroke:#bc4c00;fill:none;stroke-width:2}.hub{stroke:#0969da;fill:none;stroke-width:2}
circle.directly{fill:#bc4c00}circle.hub{fill:#0969da}
text.directly{stroke:none;fill:#bc4c00;font-weight:600}text.hub{stroke:none;fill:#0969da;font-weight:600}
@media(prefers-color-scheme:dark){
text{fill:#9198a1}.title,.name{fill:#f0f6fc}.grid{stroke:#3d444d}
.directly{stroke:#f0883e}.hub{stroke:#58a6ff}
circle.directly,text.directly{fill:#f0883e}circle.hub,text.hub{fill:#58a6ff}
}
</style>
`

// svg draws the chart.
func (c chart) svg() string {
	var b strings.Builder
	width, height := panelWidth*len(c.panels), chartTop+panelHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		width, height, width, height, escaped(c.title))
	b.WriteString(style)
	fmt.Fprintf(&b, `<text class="title" x="8" y="20">%s</text>`+"\n", escaped(c.title))
	for i, p := range c.panels {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", i*panelWidth, chartTop)
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// axis maps values to places on a line, by their logarithms.
type axis struct {
	from, to      float64 // logarithms of base 10
	first, beyond float64 // places
}

func (a axis) place(value float64) float64 {
	return a.first + (math.Log10(value)-a.from)/(a.to-a.from)*(a.beyond-a.first)
}

func (p panel) draw(b *strings.Builder) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, at := range p.points {
		low, high = min(low, at.directly, at.hub), max(high, at.directly, at.hub)
	}
	first, last := p.points[0].nodes, p.points[len(p.points)-1].nodes
	x := axis{math.Log10(first), math.Log10(max(last, first*1.1)), plotLeft, plotLeft + plotWidth}
	y := axis{math.Floor(math.Log10(low)), math.Ceil(math.Log10(high * 1.01)), plotTop + plotHeight, plotTop}
	fmt.Fprintf(b, `<text class="name" x="8" y="16">%s</text><text x="8" y="34">%s</text>`+"\n", escaped(p.title),
		escaped(p.unit))
	for decade := y.from; decade <= y.to; decade++ {
		at := y.place(math.Pow(10, decade))
		fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%.1f" x2="%d" y2="%.1f"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			plotLeft, at, plotLeft+plotWidth, at, plotLeft-labelOffset, at+4, short(math.Pow(10, decade)))
	}
	for _, at := range p.points {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x.place(at.nodes),
			plotTop+plotHeight+18, short(at.nodes))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">nodes</text>`+"\n", plotLeft+plotWidth/2,
		plotTop+plotHeight+34)
	ends := map[string]float64{}
	for _, series := range []struct {
		class string
		of    func(point) float64
	}{{"directly", func(at point) float64 { return at.directly }}, {"hub", func(at point) float64 { return at.hub }}} {
		line := make([]string, 0, len(p.points))
		for _, at := range p.points {
			line = append(line, fmt.Sprintf("%.1f,%.1f", x.place(at.nodes), y.place(series.of(at))))
			ends[series.class] = y.place(series.of(at))
		}
		fmt.Fprintf(b, `<polyline class="%s" points="%s"/>`+"\n", series.class, strings.Join(line, " "))
		for i, at := range p.points {
			place := strings.Split(line[i], ",")
			fmt.Fprintf(b, `<circle class="%s" cx="%s" cy="%s" r="3"><title>%s nodes: %s %s</title></circle>`+"\n",
				series.class, place[0], place[1], short(at.nodes), short(series.of(at)), escaped(p.unit))
		}
	}
	// Labels that would lie on each other are moved apart.
	directly, hub := ends["directly"], ends["hub"]
	if apart := labelDistance - math.Abs(directly-hub); apart > 0 {
		if directly > hub {
			directly, hub = directly+apart/2, hub-apart/2
		} else {
			directly, hub = directly-apart/2, hub+apart/2
		}
	}
	for _, label := range []struct {
		class, text string
		y, value    float64
	}{
		{"directly", "directly", directly, p.points[len(p.points)-1].directly},
		{"hub", "hub", hub, p.points[len(p.points)-1].hub},
	} {
		fmt.Fprintf(b, `<text class="%s" x="%d" y="%.1f">%s %s</text>`+"\n", label.class,
			plotLeft+plotWidth+labelOffset, label.y+4, label.text, short(label.value))
	}
}

// short is a number with two significant digits, and no more zeros than it needs.
func short(value float64) string {
	if value >= 100 {
		digits := math.Pow(10, math.Floor(math.Log10(value))-2)
		text := fmt.Sprintf("%.0f", math.Round(value/digits)*digits)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	}
	return fmt.Sprintf("%.2g", value)
}

// escaped is text as XML has it.
func escaped(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", `"`, "&quot;").Replace(text)
}
