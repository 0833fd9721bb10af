// The page: it asks for what it shows whenever the server has another revision, one request at a time.

import { get, Refusal, takeToken } from "./api.js";
import { drawDetail, drawMissing } from "./detail.js";
import { attribute, text } from "./dom.js";
import { moveInMatrix } from "./matrix.js";
import { drawOverview } from "./overview.js";
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
  drawOverview(overview, $("filter").value, $("order").value);
  drawChosen(wanted, detail);
  if (focused?.isConnected && document.activeElement === document.body) focused.focus({ preventScroll: true }); // it has moved
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

/** follow keeps the page up to date, while it is visible. */
async function follow() {
  let lost = false;
  for (;;) {
    while (document.hidden) await new Promise((resolve) => { document.addEventListener("visibilitychange", resolve, { once: true }); });
    try {
      const { revision } = await get("/api/revision");
      if (lost || String(revision) !== document.body.dataset.revision) await refresh();
      lost = false;
    } catch (error) {
      lost = true;
      refused(error);
      if (error instanceof Refusal && error.status === 401) return;
    }
    await pause(500);
  }
}

document.addEventListener("visibilitychange", refresh);
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href^='#/']");
  if (link && link.id !== "close") shown.opener = link;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && chosen()) location.hash = "#/";
});
$("matrix").addEventListener("keydown", moveInMatrix);
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
for (const [id, event] of [["filter", "input"], ["order", "change"]]) {
  $(id).addEventListener(event, () => {
    if (shown.overview) drawOverview(shown.overview, $("filter").value, $("order").value);
  });
}
$("controls").addEventListener("submit", (event) => event.preventDefault());

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is what is shown in detail
  $("content").focus();
});

takeToken();
follow();
