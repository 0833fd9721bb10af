// Command diagram draws docs/sites.svg, the picture at the top of the README: one cluster, its control plane in the
// cloud, its nodes in sites. Its colours follow the reader's light or dark theme.
//
//	diagram -write    writes the file
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	file = "docs/sites.svg"
	// style has the colours of both themes. Pages show the file as an image, so it cannot use the page's own.
	style = `<style>
text{font:14px system-ui,sans-serif;fill:#1f2328;text-anchor:middle}
.small{font-size:12px;fill:#59636e}.left{text-anchor:start}.name{font-weight:600}
.box{fill:#f6f8fa;stroke:#d1d9e0}.node{fill:#fff;stroke:#818b98}.pod,.tip{fill:#1a7f37}
.call,.link,.cut{fill:none;stroke-width:2}.call{stroke:#1a7f37}.link{stroke:#59636e}.cut{stroke:#d1242f}
.link,.away{stroke-dasharray:5 4}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.small{fill:#9198a1}.box{fill:#151b23;stroke:#3d444d}
.node{fill:#0d1117;stroke:#656c76}.pod,.tip{fill:#3fb950}.call{stroke:#3fb950}.link{stroke:#9198a1}.cut{stroke:#f85149}}
</style>`
	width, height         = 760, 352
	siteWidth, siteHeight = 224, 150
	siteTop               = 150
)

func main() {
	write := flag.Bool("write", false, "write "+file)
	root := flag.String("root", ".", "directory of the repository")
	flag.Parse()
	if !*write || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: diagram -write")
		os.Exit(2)
	}
	//nolint:gosec // as any file of the repository
	if err := os.WriteFile(filepath.Join(*root, file), []byte(draw()), 0o644); err != nil {
		fmt.Fprintf(os.Stderr, "diagram: %v\n", err)
		os.Exit(1)
	}
}

// site is a box with two nodes, a pod on each of these nodes.
type site struct {
	name string
	left int
	pods [2]bool
	// away is a site whose link to the cloud is down.
	away bool
}

func draw() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" `+
		`aria-label="One Kubernetes cluster: the control plane is in the cloud, the nodes are in the sites east, west `+
		`and north. Clients of a Service reach pods of their own site, also while the link of a site is down.">`+
		"\n%s\n",
		width, height, width, height, style)
	b.WriteString(`<rect class="box" x="190" y="8" width="380" height="62" rx="8"/>` + "\n")
	text(&b, "name", width/2, 33, "Cloud: the control plane of one cluster")
	text(&b, "small", width/2, 55, "kube-apiserver · application-grid-controller")
	for _, s := range []site{
		{name: "east", left: 12, pods: [2]bool{false, true}},
		{name: "west", left: 268, pods: [2]bool{false, true}, away: true},
		{name: "north", left: 524, pods: [2]bool{true, false}},
	} {
		s.draw(&b)
	}
	below := siteTop + siteHeight
	text(&b, "small", width/2, below+22,
		"Green: pods of one Service, and a client's connection to the Service from another node.")
	text(&b, "small", width/2, below+42,
		"On each node kube-proxy asks application-grid-wrapper, which shows it the endpoints of the node's own site.")
	b.WriteString("</svg>\n")
	return b.String()
}

func (s *site) draw(b *strings.Builder) {
	middle := s.left + siteWidth/2
	from := 280 + (middle-124)*200/512 // spread below the cloud
	class, half := "link", (70+siteTop)/2
	if s.away {
		class = "cut away"
	}
	fmt.Fprintf(b, `<path class="%s" d="M%d 70L%d %d"/>`+"\n", class, from, middle, siteTop)
	if s.away {
		fmt.Fprintf(b, `<path class="cut" d="M%d %dl16 16m0 -16l-16 16"/>`+"\n", middle-8, half-8)
		text(b, "small left", middle+18, half+4, "link down")
	}
	fmt.Fprintf(b, `<rect class="box" x="%d" y="%d" width="%d" height="%d" rx="8"/>`+"\n",
		s.left, siteTop, siteWidth, siteHeight)
	text(b, "name", middle, siteTop+24, "Site "+s.name)
	client, server := s.left+16, s.left+120
	if !s.pods[1] {
		client, server = server, client
	}
	for _, x := range []int{s.left + 16, s.left + 120} {
		fmt.Fprintf(b, `<rect class="node" x="%d" y="%d" width="88" height="78" rx="6"/>`+"\n", x, siteTop+38)
		text(b, "small", x+44, siteTop+108, "node")
	}
	for i, x := range []int{s.left + 16, s.left + 120} {
		if s.pods[i] {
			fmt.Fprintf(b, `<circle class="pod" cx="%d" cy="%d" r="11"/>`+"\n", x+44, siteTop+70)
		}
	}
	// The client's connection, from its node to a pod of the site.
	start, end := client+58, server+44-15
	if client > server {
		start, end = client+30, server+44+15
	}
	y := siteTop + 70
	fmt.Fprintf(b, `<path class="call" d="M%d %dL%d %d"/>`+"\n", start, y, end, y)
	tip := 7
	if client < server {
		tip = -7
	}
	fmt.Fprintf(b, `<path class="tip" d="M%d %dl%d -5v10z"/>`+"\n", end, y, tip)
	text(b, "small", middle, siteTop+138, "the Service reaches pods here only")
}

func text(b *strings.Builder, class string, x, y int, words string) {
	fmt.Fprintf(b, `<text class="%s" x="%d" y="%d">%s</text>`+"\n", class, x, y, words)
}
