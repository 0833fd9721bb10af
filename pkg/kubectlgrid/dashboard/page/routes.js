// The addresses of the page: what follows # says what is shown in detail.

const part = encodeURIComponent;

export const siteRoute = (site) => `#/sites/${part(site)}`;
export const serviceRoute = (s) => `#/services/${part(s.namespace)}/${part(s.name)}`;
export const cellRoute = (site, s) => `#/cells/${part(site)}/${part(s.namespace)}/${part(s.name)}`;
export const gridRoute = (g) => `#/grids/${part(g.kind.toLowerCase())}/${part(g.namespace)}/${part(g.name)}`;

/** chosen is what the address asks for: its kind, and the path to ask the server for; null for nothing. */
export function chosen() {
  const [, kind, ...rest] = location.hash.split("/");
  const lengths = { sites: 1, services: 2, grids: 3, cells: 3 };
  if (lengths[kind] !== rest.length || rest.some((text) => text === "")) return null;
  return { kind, hash: location.hash, path: `/api/${kind}/${rest.join("/")}` };
}
