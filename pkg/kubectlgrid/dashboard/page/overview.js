// Everything at a glance: what check finds, the matrix of sites and Services, and grids with their rollouts.

import { attribute, h, keyed, text } from "./dom.js";
import { drawMatrix } from "./matrix.js";
import { gridRoute } from "./routes.js";

const $ = (id) => document.getElementById(id);
const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

const siteStates = ["Failed", "Unreachable", "Changing", "Ready", "Unused"];
const listedFindings = 12;

/** drawOverview shows an overview. Only what has the filter in its name is shown of sites, Services and grids. */
export function drawOverview(overview, filter, order) {
  const named = (name) => name.toLowerCase().includes(filter.toLowerCase());
  text($("cluster"), overview.namespace ? `${overview.cluster}, namespace ${overview.namespace}` : overview.cluster);
  drawKeys(overview);
  text($("summary"), summary(overview));
  drawNotices(overview);
  drawFindings($("findings"), overview.findings);
  drawNote(overview);
  drawMatrix(overview, named, order);
  drawGrids(overview.grids.filter((grid) => named(`${grid.namespace}/${grid.name}`)));
}

function drawKeys({ keys, matrix }) {
  const select = $("key");
  keyed(select, keys, (use) => use.key, (use) => h("option", { value: use.key }), (option, use) => {
    const uses = [];
    if (use.grids > 0) uses.push(count(use.grids, "grid"));
    if (use.services > 0) uses.push(count(use.services, "Service"));
    text(option, uses.length > 0 ? `${use.key} (${uses.join(", ")})` : use.key);
  });
  select.value = matrix.key;
  select.disabled = keys.length === 0;
}

function summary({ matrix, services, grids, sources }) {
  const known = (...names) => names.every((name) => sources.every((source) => source.resource !== name || source.known));
  const states = siteStates.map((state) => [state, matrix.sites.filter((site) => site.state === state).length])
    .filter(([, n]) => n > 0).map(([state, n]) => `${n.toLocaleString("en")} ${state.toLowerCase()}`);
  const sick = (all) => {
    const n = all.filter((one) => !one.healthy).length;
    return n === 0 ? "" : `, ${n.toLocaleString("en")} not well`;
  };
  const none = known("nodes") ? "No sites" : "The sites are not known";
  const parts = [states.length > 0 ? `${count(matrix.sites.length, "site")}: ${states.join(", ")}` : none];
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

const severityWords = { failure: "Failure", warning: "Warning", unknown: "Unknown" };

/** drawFindings lists what kubectl grid check finds, each with what to do about it. */
export function drawFindings(place, findings = []) {
  place.hidden = findings.length === 0;
  const named = findings.slice(0, listedFindings).map((f) => ({
    ...f, about: [f.object.kind, [f.object.namespace, f.object.name].filter(Boolean).join("/")].filter(Boolean).join(" "),
  }));
  keyed(place, named, (f) => `${f.check} ${f.about} ${f.message}`, (f) => h("li", {}, h("strong"), h("span"), h("code")), (item, f) => {
    attribute(item, "data-severity", f.severity);
    const [about, message, action] = item.children;
    text(about, `${severityWords[f.severity]}: ${f.about}`);
    text(message, ` ${f.message}. `);
    text(action, f.action ?? "");
  });
}

/** gridWords says in words how a grid is. */
export function gridWords(grid) {
  const phases = Object.entries(grid.phases ?? {}).map(([phase, n]) => `${n.toLocaleString("en")} ${phase}`).join(", ");
  return [grid.problem, phases].filter(Boolean).join("; ") || (grid.healthy ? "Ready" : "not ready");
}

function drawNote({ matrix, sources }) {
  $("sites").hidden = false;
  let note = matrix.key ? "" : "No label divides the nodes into sites.";
  if (sources.some((source) => source.resource === "nodes" && !source.known)) {
    note = "Nodes cannot be read: the sites are those that grids have, if you may read these.";
  }
  if (matrix.nodesWithoutSite > 0 && matrix.key) {
    note = `${count(matrix.nodesWithoutSite, "node")} without the label ${matrix.key}.`;
    const edge = matrix.inNoSite ?? [];
    const named = edge.slice(0, listedFindings).join(", ");
    if (edge.length > 0) note += ` Edge nodes among them, which are in no site: ${named}${edge.length > listedFindings ? `, +${edge.length - listedFindings}` : ""}.`;
  }
  text($("sites-note"), note);
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
