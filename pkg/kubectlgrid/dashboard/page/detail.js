// One site, Service or grid in detail.

import { attribute, h, keyed, table, text } from "./dom.js";
import { drawRollout, gridWords } from "./overview.js";
import { gridRoute, serviceRoute, siteRoute } from "./routes.js";

const namedNodes = 3;

/** nodeNames names the first few nodes and counts the others, as the tables of kubectl grid do. */
function nodeNames(nodes) {
  if (nodes.length <= namedNodes) return nodes.join(",");
  return `${nodes.slice(0, namedNodes).join(",")},+${nodes.length - namedNodes}`;
}

const orNone = (value) => value || "<none>";
const endpointCells = (e) => [e.addresses.join(","), orNone(e.pod), orNone(e.node), e.ready ? "Ready" : "NotReady"];

/** paragraphs shows texts; of {text, bad, code} those that have a text. */
function paragraphs(place, items) {
  keyed(place, items.filter((item) => item.text).map((item, i) => ({ ...item, key: i + (item.code ? "code" : "") })),
    (item) => item.key, (item) => (item.code ? h("p", {}, h("code")) : h("p")),
    (element, item) => {
      attribute(element, "data-bad", item.bad);
      text(item.code ? element.firstElementChild : element, item.text);
    });
}

/** places makes the named parts of a detail once, and returns them. */
function places(body, kind, names) {
  if (body.dataset.kind !== kind) {
    body.replaceChildren(...names.map((name) => h("div", { "data-part": name })));
    body.dataset.kind = kind;
  }
  return Object.fromEntries([...body.children].map((child) => [child.dataset.part, child]));
}

const draw = { sites: drawSite, services: drawService, grids: drawGrid };

/** drawDetail shows what was chosen, and returns its title. hash distinguishes it from others of its kind. */
export function drawDetail(body, kind, hash, answer) {
  if (body.dataset.of !== hash) {
    body.replaceChildren();
    delete body.dataset.kind;
    body.dataset.of = hash;
  }
  return draw[kind](body, answer);
}

/** drawMissing says why there is nothing to show. */
export function drawMissing(body, message) {
  body.replaceChildren(h("p", {}, message));
  delete body.dataset.kind;
  return "Nothing to show";
}

function why(view) {
  const keys = view.topologyKeys;
  if (view.error) return "";
  if (keys.length === 0) return "Nothing limits the Service, so a node is sent to any ready endpoint, whichever site it is in.";
  if (keys.length === 1) {
    return `A node sees the endpoints on nodes with its own value of the label ${keys[0]}, and no others, ready or not.`;
  }
  return "A node sees the endpoints with its own value of the first of these labels that has a ready endpoint. " +
    "The column KEY says which label that is.";
}

const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : share < 1 && share >= 0.995 ? ">99%" : `${Math.round(share * 100)}%`);

function previewWords(preview) {
  if (!preview?.command || preview.ready === 0) return [];
  const words = [];
  if (preview.foreign !== undefined) {
    words.push({ text: `Of the endpoints that a node is sent to today, ${percent(preview.foreign)} are not in its own site.` });
  }
  const dark = preview.dark.length;
  words.push({
    bad: dark > 0,
    text: dark > 0 ? `If it stayed in the sites of this map, the Service would leave ${dark} without a ready endpoint: ${preview.dark.slice(0, 10).join(", ")}${dark > 10 ? ` and ${dark - 10} more` : ""}.`
      : "If it stayed in the sites of this map, the Service would leave no site without a ready endpoint.",
  }, { text: "This closes it, once application-grid is installed:" }, { text: preview.command, code: true });
  return words;
}

function drawService(body, { title, conclusion, view, preview }) {
  const part = places(body, "services", ["words", "reach", "hidden"]);
  paragraphs(part.words, [
    ...title.split("\n").map((line) => ({ text: line, bad: line.startsWith("ERROR") })),
    { text: conclusion, bad: view.without?.length > 0 },
    ...(view.findings ?? []).map((f) => ({
      text: `${f.object.kind} ${f.object.name ?? ""}: ${f.message}. ${f.action ?? ""}`, bad: f.severity === "failure",
    })),
    { text: why(view) }, ...previewWords(preview),
  ]);
  const governed = view.topologyKeys.length > 0;
  const lacking = (site) => site.ready === 0 && (site.name !== "" || !governed);
  const sites = [...view.sites.filter(lacking), ...view.sites.filter((site) => !lacking(site))];
  const rows = sites.flatMap((site) => {
    const name = governed ? orNone(site.name) : "<all>";
    const first = [
      view.topologyKeys.length === 1 && site.name ? { text: name, href: siteRoute(site.name) } : name,
      nodeNames(site.nodes), governed ? orNone(site.key) : "-", `${site.ready}/${site.endpoints.length}`,
    ];
    if (site.endpoints.length === 0) {
      return [{ key: site.name, bad: lacking(site), cells: [...first, "<none>", "-", "-", "-"] }];
    }
    return site.endpoints.map((e) => ({
      key: `${site.name} ${e.addresses} ${e.pod ?? ""} ${e.node ?? ""}`, bad: lacking(site), cells: [...first, ...endpointCells(e)],
    }));
  });
  table(part.reach, "Who reaches whom", ["Site", "Nodes", "Key", "Ready", "Endpoint", "Pod", "On node", "State"], rows);
  part.reach.hidden = Boolean(view.error);
  part.hidden.hidden = !view.hidden?.length;
  table(part.hidden, "Endpoints that no node sees", ["Endpoint", "Pod", "On node", "State", "Reason"],
    (view.hidden ?? []).map((e) => ({ key: `${e.addresses} ${e.pod ?? ""} ${e.node ?? ""}`, bad: e.ready, cells: [...endpointCells(e), e.reason] })));
  return `Service ${view.namespace}/${view.service}`;
}

function drawSite(body, { key, site, nodes, workloads, services }) {
  const part = places(body, "sites", ["words", "workloads", "services"]);
  const listed = 20;
  const more = nodes.length > listed ? ` and ${nodes.length - listed} more` : "";
  paragraphs(part.words, [
    { text: `${key}=${site.name} is ${site.state.toLowerCase()}${site.problem ? `: ${site.problem}` : ""}`, bad: site.state === "Failed" },
    { text: nodes.length > 0 ? `Nodes: ${nodes.slice(0, listed).join(", ")}${more}` : "No node is in this site." },
  ]);
  part.workloads.hidden = workloads.length === 0;
  table(part.workloads, "Workloads of grids", ["Grid", "Desired", "Ready", "Updated", "State"],
    workloads.map((w) => ({
      key: gridRoute(w), bad: w.site.phase !== "Ready",
      cells: [{ text: `${w.kind} ${w.namespace}/${w.name}`, href: gridRoute(w) }, w.site.desired, w.site.ready, w.site.updated, siteState(w.site)],
    })));
  part.services.hidden = services.length === 0;
  table(part.services, "Site-local Services, as this site's nodes see them", ["Service", "Key", "Ready"],
    services.map((s) => ({
      key: serviceRoute(s), bad: s.ready === 0,
      cells: [{ text: `${s.namespace}/${s.name}`, href: serviceRoute(s) }, orNone(s.key), `${s.ready}/${s.endpoints}`],
    })));
  return `Site ${site.name}`;
}

const siteState = (site) => (site.problem ? `${site.phase}: ${site.problem}` : site.phase);

function drawGrid(body, { grid, state, rollout }) {
  const part = places(body, "grids", ["words", "rollout", "sites"]);
  const sites = grid.sites ?? [];
  const unlisted = (grid.unlistedReady ?? 0) + (grid.unlisted ?? 0);
  paragraphs(part.words, [
    // A rollout in progress is shown with its waves.
    { text: state === "Changing" && rollout ? "" : gridWords({ ...grid, phases: {} }), bad: state === "Failed" },
    { text: grid.service ? `Its Service is ${grid.service}, site-local in ${grid.siteCount} sites.` : "" },
    { text: rollout?.phase === "AwaitingApproval" ? "This approves the wave that waits:" : "" },
    { text: rollout?.phase === "AwaitingApproval" ? `kubectl grid rollout approve ${grid.kind.toLowerCase()}/${grid.name} -n ${grid.namespace}` : "", code: true },
    { text: unlisted > 0 ? `The status of so large a grid only counts ${grid.unlistedReady ?? 0} ready sites and ${grid.unlisted ?? 0} others.` : "" },
  ]);
  drawRollout(part.rollout, rollout);
  part.sites.hidden = sites.length === 0;
  const ready = (site) => site.phase === "Ready";
  table(part.sites, `Sites by the label ${grid.gridUniqKey}`, ["Site", "Desired", "Ready", "Updated", "State"],
    [...sites.filter((site) => !ready(site)), ...sites.filter(ready)].map((site) => ({
      key: site.name, bad: !ready(site),
      cells: [{ text: site.name, href: siteRoute(site.name) }, site.desired, site.ready, site.updated, siteState(site)],
    })));
  return `${grid.kind} ${grid.namespace}/${grid.name}`;
}
