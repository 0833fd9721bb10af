// Elements that are made once and changed where something is different, so that focus, selection and scroll position
// stay while the cluster changes.

/** h makes an element. An attribute that is false, null or undefined is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) attribute(element, name, value);
  element.append(...children);
  return element;
}

/** attribute sets or removes an attribute if it is different. */
export function attribute(element, name, value) {
  if (value === false || value === null || value === undefined) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** text sets an element's text if it is different. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

const elements = new WeakMap(); // of a parent: its children by key

/** keyed makes the children of a parent those of the items, in their order. patch brings a child up to date. */
export function keyed(parent, items, keyOf, create, patch) {
  const before = elements.get(parent) ?? new Map();
  const now = new Map();
  for (const item of items) {
    const key = keyOf(item);
    now.set(key, before.get(key) ?? create(item));
  }
  for (const [key, element] of before) if (!now.has(key)) element.remove();
  let next = parent.firstElementChild;
  for (const item of items) {
    const element = now.get(keyOf(item));
    patch(element, item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
  elements.set(parent, now);
}

const firstRows = 200;

/**
 * table makes a table, or brings it up to date: it is the only child of its place. A row is {key, bad, cells}; a cell is
 * a text or {text, href}. Of a long table the first rows are there, and a button that brings the others.
 */
export function table(place, caption, columns, rows) {
  if (!place.table) {
    const body = h("tbody");
    const head = h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)));
    const all = h("button", { type: "button" });
    all.addEventListener("click", () => {
      place.table.limit = Infinity;
      place.table.draw();
    });
    place.table = { body, all, columns, limit: firstRows, rows: [], caption: h("caption") };
    place.table.draw = () => drawRows(place.table);
    const inside = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      h("table", {}, place.table.caption, h("thead", {}, head), body));
    place.replaceChildren(inside, all);
  }
  text(place.table.caption, caption);
  place.table.rows = rows;
  place.table.draw();
}

function drawRows({ body, all, columns, limit, rows }) {
  keyed(body, rows.slice(0, limit), (row) => row.key,
    (row) => h("tr", {}, ...row.cells.map((cell, i) =>
      h(i === 0 ? "th" : "td", i === 0 ? { scope: "row" } : { "data-column": columns[i] }, ...(cell?.href ? [h("a")] : [])))),
    (element, row) => {
      attribute(element, "data-bad", row.bad);
      row.cells.forEach((cell, i) => {
        const place = element.children[i];
        if (cell?.href) {
          attribute(place.firstElementChild, "href", cell.href);
          text(place.firstElementChild, cell.text);
        } else {
          text(place, String(cell));
        }
      });
    });
  all.hidden = rows.length <= limit;
  text(all, `Show all ${rows.length.toLocaleString("en")} rows`);
}
