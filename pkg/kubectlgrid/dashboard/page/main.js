// The page: it asks for what it shows whenever the server reports another revision, one request at a time.

import { get, Refusal, revisions, takeToken } from "./api.js";
import { drawDetail, drawMissing } from "./detail.js";
import { attribute, text } from "./dom.js";
import { drawOverview, moveInMap } from "./overview.js";
import { chosen } from "./routes.js";

const $ = (id) => document.getElementById(id);
const shown = { key: "", overview: null, opener: null, detail: "" };

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

/** connection says whether what is shown is what there is. */
function connection(state, words) {
  attribute($("connection"), "data-state", state);
  text($("connection"), words);
}

/** refresh asks for what is shown, and shows it. A call during another one makes that one ask again. */
let asking = false;
let askAgain = false;
async function refresh() {
  askAgain = true;
  if (asking || document.hidden) return;
  asking = true;
  while (askAgain) {
    askAgain = false;
    try {
      await show();
    } catch (error) {
      refused(error);
      if (error instanceof Refusal && error.status === 503) {
        await pause(500);
        askAgain = true;
      }
    }
  }
  asking = false;
}

function refused(error) {
  if (!(error instanceof Refusal)) connection("lost", "The command has ended, or does not answer. What is shown is old.");
  else if (error.status === 401) connection("lost", "Open the URL that kubectl grid dashboard has printed: this tab has no valid token.");
  else connection("reading", `${error.message}…`);
}

async function show() {
  const wanted = chosen();
  const query = shown.key ? `?key=${encodeURIComponent(shown.key)}` : "";
  const [overview, detail] = await Promise.all([
    get(`/api/overview${query}`),
    wanted && get(wanted.path + query).catch((error) => {
      if (error instanceof Refusal && error.status === 404) return error;
      throw error;
    }),
  ]);
  if (chosen()?.hash !== wanted?.hash) { // something else was chosen meanwhile
    askAgain = true;
    return;
  }
  performance.mark("draw-begin");
  shown.overview = overview;
  const focused = document.activeElement;
  drawOverview(overview, $("filter").value);
  drawChosen(wanted, detail);
  // An element that has moved has lost the focus; a tile may be a new one in another group.
  if (focused && focused !== document.body && document.activeElement === document.body) {
    const again = focused.isConnected ? focused : focused.dataset.site && $("map").querySelector(`[data-site="${CSS.escape(focused.dataset.site)}"]`);
    again?.focus({ preventScroll: true });
  }
  document.body.dataset.revision = overview.revision;
  performance.measure("draw", "draw-begin");
  const failing = overview.sources.some((source) => source.state === "Failing");
  connection(failing ? "lost" : "live", failing ? "The API server does not answer. What is shown may be old." : "Live");
}

function drawChosen(wanted, answer) {
  $("detail").hidden = !wanted;
  if (!wanted) {
    shown.detail = "";
    document.title = "application-grid";
    return;
  }
  const body = $("detail-body");
  const title = answer instanceof Refusal ? drawMissing(body, answer.message) : drawDetail(body, wanted.kind, wanted.hash, answer);
  text($("detail-title"), title);
  document.title = `${title} – application-grid`;
  if (shown.detail !== wanted.hash) {
    shown.detail = wanted.hash;
    $("detail-title").focus();
    $("detail").scrollIntoView({ block: "start" });
  }
}

/** follow keeps the page up to date, while it is visible: browsers allow few connections to one server. */
let stream = new AbortController();
async function follow() {
  for (;;) {
    while (document.hidden) await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
    stream = new AbortController();
    try {
      for await (const revision of revisions(stream.signal)) {
        if (String(revision) !== document.body.dataset.revision) refresh();
      }
      refused(new Error("the stream has ended"));
    } catch (error) {
      if (stream.signal.aborted) continue;
      refused(error);
      if (error instanceof Refusal && error.status === 401) return;
    }
    await pause(1000);
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) stream.abort();
  else refresh();
});
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#/']");
  if (link && link.id !== "close") shown.opener = link;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen()) location.hash = "#/";
});
$("map").addEventListener("keydown", moveInMap);
window.addEventListener("hashchange", async () => {
  if (location.hash.startsWith("#token=")) { // the URL of a command that was started again on the same port
    takeToken();
    location.reload();
    return;
  }
  const closed = !chosen() && shown.detail;
  await refresh();
  if (closed) (shown.opener?.isConnected ? shown.opener : $("content")).focus();
});
$("key").addEventListener("change", () => {
  shown.key = $("key").value;
  refresh();
});
$("filter").addEventListener("input", () => {
  if (shown.overview) drawOverview(shown.overview, $("filter").value);
});
$("controls").addEventListener("submit", (event) => event.preventDefault());

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is what is shown in detail
  $("content").focus();
});

takeToken();
follow();
