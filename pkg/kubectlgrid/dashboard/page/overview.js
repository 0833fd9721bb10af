// Everything at a glance: what is not well, the sites as a map, grids and Services.

import { attribute, h, keyed, table, text } from "./dom.js";
import { gridRoute, serviceRoute, siteRoute } from "./routes.js";

const $ = (id) => document.getElementById(id);
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

const siteStates = ["Failed", "Unreachable", "Changing", "Ready", "Unused"];
// Above this many sites a tile has no room for a name.
const namedTiles = 80;
const listedProblems = 12;

/** drawOverview shows an overview. Only what has the filter in its name is shown of sites, Services and grids. */
export function drawOverview(overview, filter) {
  const named = (name) => name.toLowerCase().includes(filter.toLowerCase());
  text($("cluster"), overview.namespace ? `${overview.cluster}, namespace ${overview.namespace}` : overview.cluster);
  drawKeys(overview);
  text($("summary"), summary(overview));
  drawNotices(overview);
  drawFindings($("findings"), overview.findings);
  drawProblems(overview);
  drawMap(overview, overview.map.sites.filter((site) => named(site.name)));
  drawGrids(overview.grids.filter((grid) => named(`${grid.namespace}/${grid.name}`)));
  drawServices(overview.services.filter((service) => named(`${service.namespace}/${service.name}`)));
}

function drawKeys({ keys, map }) {
  const select = $("key");
  keyed(select, keys, (use) => use.key, (use) => h("option", { value: use.key }), (option, use) => {
    const uses = [];
    if (use.grids > 0) uses.push(count(use.grids, "grid"));
    if (use.services > 0) uses.push(count(use.services, "Service"));
    text(option, uses.length > 0 ? `${use.key} (${uses.join(", ")})` : use.key);
  });
  select.value = map.key;
  select.disabled = keys.length === 0;
}

function summary({ map, services, grids, sources }) {
  const known = (...names) => names.every((name) => sources.every((source) => source.resource !== name || source.known));
  const states = siteStates.map((state) => [state, map.sites.filter((site) => site.state === state).length])
    .filter(([, n]) => n > 0).map(([state, n]) => `${n.toLocaleString("en")} ${state.toLowerCase()}`);
  const sick = (all) => {
    const n = all.filter((one) => !one.healthy).length;
    return n === 0 ? "" : `, ${n.toLocaleString("en")} not well`;
  };
  const none = known("nodes") ? "No sites" : "The sites are not known";
  const parts = [states.length > 0 ? `${count(map.sites.length, "site")}: ${states.join(", ")}` : none];
  // What nodes see of Services follows from all three.
  parts.push(known("nodes", "services", "endpointslices") ? count(services.length, "Service") + sick(services)
    : "Who sees which Services is not known");
  const forbidden = sources.some((source) => source.resource.endsWith("grids") && source.state === "Forbidden");
  parts.push(count(grids.length, "grid") + sick(grids) + (forbidden ? ", and there may be others that you may not read" : ""));
  return `${parts.join(". ")}.`;
}

const sourceWords = {
  Forbidden: "You may not read", NotServed: "This cluster does not have", Failing: "What is shown may be old: cannot follow",
};

function drawNotices({ sources, namespace }) {
  const told = sources.filter((source) => sourceWords[source.state])
    .map((source) => ({ key: source.resource, words: `${sourceWords[source.state]} ${source.resource}: ${source.message}` }));
  if (!namespace && sources.some((source) => source.state === "Forbidden" && source.resource !== "nodes")) {
    told.push({ key: "", words: "If you may read one namespace, start the command with -n NAMESPACE." });
  }
  $("notices").hidden = told.length === 0;
  keyed($("notices"), told, (notice) => notice.key, () => h("li"), (item, notice) => text(item, notice.words));
}

/** drawFindings lists what kubectl grid check finds, each with what to do about it. */
export function drawFindings(place, findings = []) {
  place.hidden = findings.length === 0;
  const named = findings.slice(0, listedProblems).map((f) => ({
    ...f, about: [f.object.kind, [f.object.namespace, f.object.name].filter(Boolean).join("/")].filter(Boolean).join(" "),
  }));
  keyed(place, named, (f) => `${f.check} ${f.about} ${f.message}`, (f) => h("li", {}, h("strong"), h("span"), h("code")), (item, f) => {
    attribute(item, "data-severity", f.severity);
    const [about, message, action] = item.children;
    text(about, `${f.severity === "failure" ? "Failure" : "Warning"}: ${f.about}`);
    text(message, ` ${f.message}. `);
    text(action, f.action ?? "");
  });
}

const serviceWords = {
  Invalid: () => "the annotation does not parse, so that no node sees any endpoint",
  Lacking: (s) => `${s.without} of ${count(s.sites, "site")} without a ready endpoint`,
  Failing: () => "on some nodes it does not stay in its site",
  Hidden: () => "no node sees some of its ready endpoints",
  Empty: () => "no endpoint is ready",
  Closed: (s) => (s.sites > 0 ? `stays in ${count(s.sites, "site")}` : "governed, but no node is in a site"),
  Open: () => "open: every node sees all endpoints",
};

/** gridWords says in words how a grid is. */
export function gridWords(grid) {
  const phases = Object.entries(grid.phases ?? {}).map(([phase, n]) => `${n.toLocaleString("en")} ${phase}`).join(", ");
  return [grid.problem, phases].filter(Boolean).join("; ") || (grid.healthy ? "Ready" : "not ready");
}

function drawProblems({ map, services, grids }) {
  const all = [
    ...map.sites.filter((site) => site.state === "Failed" || site.state === "Unreachable").map((site) => ({
      href: siteRoute(site.name), name: `Site ${site.name}`, why: `${site.state.toLowerCase()}: ${site.problem}`,
    })),
    ...services.filter((service) => !service.healthy).map((service) => ({
      href: serviceRoute(service), name: `Service ${service.namespace}/${service.name}`, why: serviceWords[service.state](service),
    })),
    ...grids.filter((grid) => !grid.healthy).map((grid) => ({
      href: gridRoute(grid), name: `${grid.kind} ${grid.namespace}/${grid.name}`, why: gridWords(grid),
    })),
  ];
  // Of each kind some, so that many of one kind do not hide the others.
  const shown = all.length <= listedProblems ? all : ["Site ", "Service ", ""].flatMap((prefix) => all.filter((p) =>
    prefix ? p.name.startsWith(prefix) : !/^(Site|Service) /.test(p.name)).slice(0, listedProblems / 3));
  $("problems").hidden = all.length === 0;
  keyed($("problem-list"), shown, (p) => p.href, () => h("li", {}, h("a"), h("span")), (item, p) => {
    attribute(item.firstElementChild, "href", p.href);
    text(item.firstElementChild, p.name);
    text(item.lastElementChild, p.why);
  });
  $("more-problems").hidden = shown.length === all.length;
  text($("more-problems"), `And ${(all.length - shown.length).toLocaleString("en")} more, which come first below.`);
}

function drawMap({ map, sources }, sites) {
  $("sites").hidden = false;
  let note = map.key ? "" : "No label divides the nodes into sites.";
  if (sources.some((source) => source.resource === "nodes" && !source.known)) {
    note = "Nodes cannot be read: the sites are those that grids have, if you may read these.";
  }
  if (map.nodesWithoutSite > 0 && map.key) note = `${count(map.nodesWithoutSite, "node")} without the label ${map.key}.`;
  text($("sites-note"), note);
  attribute($("map"), "data-dense", sites.length > namedTiles);
  const groups = siteStates.map((state) => ({ state, sites: sites.filter((site) => site.state === state) }))
    .filter((group) => group.sites.length > 0);
  keyed($("map"), groups, (group) => group.state,
    (group) => h("div", { class: "group" }, h("h3", { id: `group-${group.state}` }),
      h("ul", { class: "tiles", "aria-labelledby": `group-${group.state}` })),
    (element, group) => {
      text(element.firstElementChild, `${group.state} (${group.sites.length.toLocaleString("en")})`);
      keyed(element.lastElementChild, group.sites, (site) => site.name, newTile, drawTile);
    });
  // One tile is in the order of the Tab key; the arrow keys move to the others.
  if (!$("map").querySelector("a[tabindex='0']")) $("map").querySelector("a")?.setAttribute("tabindex", "0");
}

function newTile(site) {
  return h("li", {}, h("a", { href: siteRoute(site.name), tabindex: -1, "data-site": site.name },
    h("span", { class: "name" }, site.name), " ", h("span", { class: "nodes" }), h("span", { class: "read-out" })));
}

function drawTile(item, site) {
  const link = item.firstElementChild;
  const [, nodes, words] = link.children;
  const more = [site.state.toLowerCase()];
  if (site.problems > 0) more.push(count(site.problems, "problem"), site.problem);
  attribute(link, "data-state", site.state);
  attribute(link, "title", [site.name, count(site.nodes, "node"), ...more].join("\n"));
  text(nodes, count(site.nodes, "node"));
  text(words, `, ${more.join(", ")}`); // what can be seen by the colour and the sign
}

/** moveInMap moves the focus among the tiles by the arrow keys, Home and End. */
export function moveInMap(event) {
  const tiles = [...$("map").querySelectorAll("a")];
  const from = tiles.indexOf(document.activeElement);
  if (from < 0) return;
  const to = {
    ArrowLeft: () => tiles[from - 1], ArrowRight: () => tiles[from + 1], Home: () => tiles[0], End: () => tiles.at(-1),
    ArrowUp: () => nearest(tiles.slice(0, from).reverse(), tiles[from]),
    ArrowDown: () => nearest(tiles.slice(from + 1), tiles[from]),
  }[event.key]?.();
  if (!to) return;
  event.preventDefault();
  tiles[from].tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

/** nearest is of the first other row of tiles the one that is closest. */
function nearest(tiles, from) {
  const here = from.getBoundingClientRect();
  let row = null;
  let best = null;
  for (const tile of tiles) {
    const there = tile.getBoundingClientRect();
    if (Math.abs(there.top - here.top) < 1) continue;
    row ??= there.top;
    if (Math.abs(there.top - row) >= 1) break;
    const distance = Math.abs(there.left - here.left);
    if (!best || distance < best.distance) best = { tile, distance };
  }
  return best?.tile;
}

function drawGrids(grids) {
  $("grids").hidden = grids.length === 0;
  keyed($("grid-list"), grids, gridRoute,
    () => h("li", {}, h("h3", {}, h("a")), h("p", { class: "words" }), h("div")),
    (item, grid) => {
      attribute(item, "data-state", grid.state);
      const link = item.querySelector("a");
      attribute(link, "href", gridRoute(grid));
      text(link, `${grid.kind} ${grid.namespace}/${grid.name}`);
      // A rollout in progress is shown below, with its waves.
      const said = grid.state === "Changing" && grid.rollout;
      text(item.querySelector(".words"), gridWords(said ? { ...grid, problem: "" } : grid));
      drawRollout(item.lastElementChild, grid.rollout);
    });
}

/** drawRollout shows the progress of a rollout, in the words and numbers of kubectl grid rollout status. */
export function drawRollout(place, rollout) {
  place.hidden = !rollout;
  if (!rollout) return;
  if (!place.firstElementChild) place.append(h("p", { class: "rollout" }), h("ol", { class: "waves" }));
  attribute(place.firstElementChild, "data-bad", rollout.failed);
  text(place.firstElementChild, `Rollout ${rollout.summary}`);
  const waves = (rollout.waves ?? []).map((wave, i) => ({ ...wave, key: `${i} ${wave.name ?? ""}`, name: wave.name || "<others>" }));
  keyed(place.lastElementChild, waves, (wave) => wave.key,
    () => h("li", {}, h("span", { class: "wave" }), h("progress"), h("span", { class: "numbers" })),
    (item, wave) => {
      const [name, bar, numbers] = item.children;
      attribute(item, "data-state", wave.state);
      text(name, `${wave.name}: ${wave.state}`);
      attribute(bar, "aria-label", `Sites of wave ${wave.name} that are updated`);
      attribute(bar, "max", Math.max(wave.sites, 1));
      attribute(bar, "value", wave.updated);
      text(numbers, `${wave.updated} of ${count(wave.sites, "site")} updated, ${wave.ready} ready, ${wave.proven ?? 0} proven, ${wave.failed} failed, ${wave.suspects ?? 0} suspects, ${wave.deferred} deferred`);
    });
}

function drawServices(services) {
  $("services").hidden = services.length === 0;
  table($("service-table"), "Services: problems first", ["Service", "State", "What that means", "Keys"],
    services.map((s) => ({
      key: `${s.namespace}/${s.name}`, bad: !s.healthy,
      cells: [{ text: `${s.namespace}/${s.name}`, href: serviceRoute(s) }, s.state, serviceWords[s.state](s),
        s.topologyKeys.join(", ") || "-"],
    })));
}
