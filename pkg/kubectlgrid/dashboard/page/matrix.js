// The matrix of sites, and of the grids and Services there. The server says every word, and what needs attention.

import { attribute, h, keyed, text } from "./dom.js";
import { cellRoute, gridRoute, serviceRoute, siteRoute } from "./routes.js";

const $ = (id) => document.getElementById(id);
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const letter = (cell) => cell.charCodeAt(0) - 97;

// So many rows and columns are unfolded, and those that need attention, at most so many; a button unfolds as many more.
const unfolded = { rows: 25, columns: 10 };
const atMost = 50;
const more = { rows: 0, columns: 0 };
let redraw = () => {};

const needsAttention = ({ severity }) => severity === "failure" || severity === "warning";

/** unfold divides what needs attention first into what is shown, in the order that was chosen, and what is folded. */
function unfold(all, what, order) {
  const n = Math.min(Math.max(all.filter(needsAttention).length, unfolded[what]), atMost) + more[what];
  const shown = all.slice(0, n);
  if (order === "name") shown.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  return [shown, all.slice(n)];
}

/** matching are those with the filter in their names; all of them if none has, and others might. */
const matching = (all, named) => {
  const some = all.filter(({ name }) => named(name));
  return some.length > 0 ? some : all;
};

function columnsOf({ matrix, grids, services }) {
  const used = (cells, i) => matrix.sites.some((site) => site[cells][i] !== "a");
  const severityOf = { Failed: "failure", Unreachable: "warning" };
  return [
    ...grids.map((g, i) => ({ i, cells: "grids", name: `${g.namespace}/${g.name}`, what: g.kind, severity: severityOf[g.state] ?? "ok",
      means: g.problem, href: gridRoute(g), cell: () => gridRoute(g) })),
    ...services.map((s, i) => ({ i, cells: "services", name: `${s.namespace}/${s.name}`, what: "Service", severity: s.severity,
      means: s.message, href: serviceRoute(s), cell: (site) => cellRoute(site.name, s) })),
  ].filter((column) => used(column.cells, column.i) || column.cells === "services" && needsAttention(column))
    .sort((a, b) => needsAttention(b) - needsAttention(a));
}

/** tally says how many cells have each word. */
function tally(words, letters) {
  const counts = new Map();
  for (const cell of letters) if (cell !== "a") counts.set(cell, (counts.get(cell) ?? 0) + 1);
  return [...counts].sort((a, b) => b[0].localeCompare(a[0])).map(([cell, n]) => `${n.toLocaleString("en")} ${words[letter(cell)].word}`).join(", ") || "-";
}

/** drawMatrix shows the matrix of an overview. */
export function drawMatrix(overview, named, order) {
  redraw = () => drawMatrix(overview, named, order);
  const { words, sites } = overview.matrix;
  const [rows, foldedRows] = unfold(matching(sites, named), "rows", order);
  const [columns, foldedColumns] = unfold(matching(columnsOf(overview), named), "columns", order);
  const place = $("matrix");
  if (!place.firstElementChild) {
    place.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Matrix of sites and Services" },
      h("table", {}, h("thead", {}, h("tr")), h("tbody"))));
  }
  place.hidden = sites.length === 0;
  const fold = foldedColumns.length > 0 ? [{ fold: foldedColumns }] : [];
  const keyOf = (column) => column.href ?? (column.fold ? "more" : "site");
  keyed(place.querySelector("thead tr"), [{}, ...columns, ...fold], keyOf, newHead, drawHead);
  const last = foldedRows.length > 0 ? [{ fold: foldedRows }] : [];
  keyed(place.querySelector("tbody"), [...rows, ...last], (site) => site.name ?? "", () => h("tr"), (row, site) => {
    attribute(row, "data-site", site.name);
    keyed(row, [{}, ...columns, ...fold], keyOf, (column) => (keyOf(column) === "site" ? newSite(site) : h("td", {}, h("a"))),
      (cell, column) => {
        if (keyOf(column) === "site") drawSite(cell, site);
        else drawCell(cell, words, site, column);
      });
  });
  if (!place.querySelector("tbody a[tabindex='0']")) place.querySelector("tbody a")?.setAttribute("tabindex", "0");
  drawLegend(words, sites);
}

function newHead(column) {
  if (column.fold) return h("th", { scope: "col" }, moreButton("columns"));
  return column.href ? h("th", { scope: "col" }, h("span", { class: "what" }), h("a")) : h("th", { scope: "col" }, "Site");
}

function drawHead(head, column) {
  if (column.fold) text(head.firstElementChild, `${count(column.fold.length, "more column")}`);
  if (!column.href) return;
  const [what, link] = head.children;
  attribute(head, "data-severity", column.severity);
  text(what, column.what);
  attribute(link, "href", column.href);
  attribute(link, "title", column.means);
  text(link, column.name);
}

function moreButton(what) {
  const button = h("button", { type: "button", "data-more": what });
  button.addEventListener("click", () => {
    more[what] += 50;
    redraw();
  });
  return button;
}

const newSite = (site) => (site.fold ? h("th", { scope: "row" }, moreButton("rows"))
  : h("th", { scope: "row" }, h("a", { tabindex: -1, href: siteRoute(site.name) }, site.name), h("span", { class: "what" })));

function drawSite(head, site) {
  if (site.fold) {
    text(head.firstElementChild, count(site.fold.length, "more site"));
    return;
  }
  attribute(head, "data-severity", site.severity);
  const state = site.state === "Ready" ? "" : `, ${site.state.toLowerCase()}`;
  text(head.lastElementChild, `${count(site.nodes, "node")}${state}${site.problem ? `: ${site.problem}` : ""}`);
}

function drawCell(cell, words, site, column) {
  const link = cell.firstElementChild;
  const sites = site.fold ?? [site];
  const columns = column.fold ?? [column];
  attribute(cell, "data-column", column.name ?? "others");
  const folded = Boolean(site.fold || column.fold);
  const letters = columns.flatMap(({ cells, i }) => sites.map((one) => one[cells][i]));
  const word = folded ? { word: tally(words, letters) } : words[letter(letters[0])];
  attribute(cell, "data-severity", word.severity);
  attribute(cell, "data-word", word.severity && word.word);
  attribute(link, "href", !folded && letters[0] !== "a" ? column.cell(site) : null);
  if (!link.hasAttribute("tabindex")) link.tabIndex = -1;
  attribute(link, "title", word.means);
  text(link, word.word);
}

function drawLegend(words, sites) {
  const used = new Set(sites.flatMap((site) => [...site.grids, ...site.services]));
  const shown = words.map((word, i) => ({ ...word, i })).filter(({ i }) => i > 0 && used.has(String.fromCharCode(97 + i)));
  keyed($("legend"), shown, (word) => word.i, () => h("div", {}, h("dt"), h("dd")), (item, word) => {
    attribute(item, "data-severity", word.severity);
    attribute(item, "data-word", word.word);
    text(item.firstElementChild, word.word);
    text(item.lastElementChild, word.means);
  });
  $("legend").hidden = shown.length === 0;
}

/** moveInMatrix moves the focus among the cells by the arrow keys: one of them is in the order of the Tab key. */
export function moveInMatrix(event) {
  const from = document.activeElement;
  const row = from.closest?.("tbody tr");
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!row || !step) return;
  event.preventDefault();
  const rows = [...row.parentElement.children];
  let r = rows.indexOf(row) + step[0];
  let c = [...row.children].indexOf(from.closest("th, td")) + step[1];
  for (; rows[r]?.children[c]; r += step[0], c += step[1]) {
    const to = rows[r].children[c].querySelector("a[href], button");
    if (!to) continue;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
    return;
  }
}
