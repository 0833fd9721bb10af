package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a tab of a headless Chromium.
type browser struct {
	f   *fixture
	ctx context.Context

	mu sync.Mutex
	// requested are the URLs that were asked for, complaints what the console says and what was not caught. Guarded by
	// mu.
	requested, complaints []string
}

// browse starts a Chromium with a page.
func (f *fixture) browse(url string) *browser {
	f.Helper()
	b := &browser{f: f}
	// A sandbox needs a user who is not root.
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.NoSandbox)
	allocator, stop := chromedp.NewExecAllocator(f.ctx, options...)
	f.Cleanup(stop)
	tab, closeTab := chromedp.NewContext(allocator, chromedp.WithListener(b.listen))
	f.Cleanup(closeTab)
	b.ctx = tab
	b.do(chromedp.EmulateViewport(1200, 900))
	b.scheme("light")
	b.do(chromedp.Navigate(url))
	return b
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.f.Helper()
	b.f.Must(chromedp.Do(b.ctx, actions...))
}

func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requested = append(b.requested, e.Request.URL)
	case *log.EventEntryAdded:
		if strings.Contains(e.Entry.Text, "status of 503") { // the cluster is still being read
			return
		}
		b.complaints = append(b.complaints, fmt.Sprintf("%s: %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Text)
		if e.ExceptionDetails.Exception != nil {
			b.complaints = append(b.complaints, e.ExceptionDetails.Exception.Description)
		}
	}
}

// expectQuiet fails the test if the page has asked another server, or if the console has something to say.
func (b *browser) expectQuiet(origin string) {
	b.f.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requested {
		if !strings.HasPrefix(url, origin+"/") {
			b.f.Errorf("the page has asked for %s", url)
		}
		if strings.Contains(url, "token") && !strings.Contains(url, "#token=") {
			b.f.Errorf("the token was sent in %s", url)
		}
	}
	if len(b.requested) < 5 || len(b.complaints) > 0 {
		b.f.Errorf("%d requests, and the console says %q", len(b.requested), b.complaints)
	}
}

// evaluate is the value of an expression; of a promise its result.
func evaluate[T any](b *browser, expression string) T {
	b.f.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.f.Fatalf("%s: %v", expression, err)
	}
	return value
}

// until waits until an expression is true. A page that is just being loaded cannot tell.
func (b *browser) until(what, expression string) {
	b.f.Helper()
	b.f.Eventually("the page: "+what, func() error {
		text, err := chromedp.Run(b.ctx,
			chromedp.Evaluate[string]("("+expression+") ? '' : 'the page: ' + document.body.innerText"))
		if err == nil && text != "" {
			err = fmt.Errorf("not %s: %.2000s", expression, text)
		}
		return err
	})
}

// follow goes where a link with this text leads, as a click does.
func (b *browser) follow(text string) {
	b.f.Helper()
	link := fmt.Sprintf("[...document.querySelectorAll('main a')].find(a => a.textContent === %q)", text)
	b.until("a link "+text, link)
	evaluate[bool](b, link+".click() === undefined")
	title := strings.TrimPrefix(text, "Site ")
	b.until(text+" is shown", fmt.Sprintf("!document.getElementById('detail').hidden && document.getElementById('detail-title').textContent.includes(%q)", title))
}

// show shows another part of the page.
func (b *browser) show(hash, title string) {
	b.f.Helper()
	evaluate[string](b, fmt.Sprintf("location.hash = %q", hash))
	if title == "" {
		b.until("nothing is chosen", "document.getElementById('detail').hidden")
		return
	}
	b.until(title+" is shown", fmt.Sprintf("!document.getElementById('detail').hidden && document.getElementById('detail-title').textContent === %q", title))
}

// table are the rows of a table of the page, sorted.
func (b *browser) table(selector string) []string {
	b.f.Helper()
	found := evaluate[[]string](b, fmt.Sprintf(
		"[...document.querySelectorAll(%q)].map(row => [...row.children].map(cell => cell.textContent).join(' | '))",
		selector+" tbody tr"))
	slices.Sort(found)
	return found
}

// scheme sets light or dark as the user's preference.
func (b *browser) scheme(scheme string) {
	b.f.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		features := []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		return err
	}))
}

// press presses a key.
func (b *browser) press(key string) {
	b.f.Helper()
	b.do(chromedp.KeyEvent(key))
}

// shot leaves a screenshot of the whole page in DASHBOARD_SHOTS, if that is set, and returns it.
func (b *browser) shot(name string) []byte {
	b.f.Helper()
	picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	b.f.Must(err)
	if dir := os.Getenv("DASHBOARD_SHOTS"); dir != "" {
		b.f.Must(os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600))
	}
	return picture
}

// violations is what axe finds on the page as it is.
func (b *browser) violations() []string {
	b.f.Helper()
	if !evaluate[bool](b, "'axe' in window") {
		program, err := os.ReadFile(filepath.Join("axe", "node_modules", "axe-core", "axe.min.js"))
		if err != nil {
			b.f.Fatalf("%v: `make test-e2e` installs it, or npm --prefix test/e2e/dashboard/axe ci", err)
		}
		evaluate[bool](b, string(program)+"; true")
	}
	text := evaluate[string](b, `axe.run().then(found => JSON.stringify(
		found.violations.flatMap(v => v.nodes.map(n => v.id + ": " + n.target.join(" ") + ": " + n.failureSummary))))`)
	var found []string
	b.f.Must(json.Unmarshal([]byte(text), &found))
	return found
}

// expectAccessible fails the test for everything that axe finds, in light and in dark.
func (b *browser) expectAccessible(what string) {
	b.f.Helper()
	for _, scheme := range []string{"dark", "light"} {
		b.scheme(scheme)
		for _, violation := range b.violations() {
			b.f.Errorf("%s, %s: %s", what, scheme, violation)
		}
	}
}

// appears waits until a site is counted in the page, and returns how long after begin it was.
func (b *browser) appears(site string, change func()) time.Duration {
	b.f.Helper()
	evaluate[bool](b, fmt.Sprintf(`window.appeared = new Promise(resolve => {
		const observer = new MutationObserver(() => {
			if (!document.querySelector("#matrix [data-site=%s]")) return;
			observer.disconnect();
			resolve(Date.now());
		});
		observer.observe(document.getElementById("matrix"), { childList: true, subtree: true });
	}), true`, site))
	begin := time.Now()
	change()
	return time.UnixMilli(evaluate[int64](b, "window.appeared")).Sub(begin)
}
