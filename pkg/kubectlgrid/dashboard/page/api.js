// What the page asks its server for. Every request has the token, which came in the fragment of the URL.

const tokenKey = "token";

/** Refusal is an answer other than 200. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** takeToken moves the token from the address to the storage of this tab, so that no history keeps it. */
export function takeToken() {
  const match = /^#token=(\w+)$/.exec(location.hash);
  if (match) {
    sessionStorage.setItem(tokenKey, match[1]);
    history.replaceState(null, "", `${location.pathname}#/`);
  }
}

const longestSilence = 40_000;

/** get returns the JSON at a path. */
export async function get(path) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(tokenKey) ?? ""}` };
  const response = await fetch(path, { headers, signal: AbortSignal.timeout(longestSilence), cache: "no-store" });
  if (!response.ok) {
    const reason = await response.json().catch(() => ({}));
    throw new Refusal(response.status, reason.message ?? response.statusText);
  }
  return response.json();
}
