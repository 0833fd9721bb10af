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

async function ask(path, signal) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(tokenKey) ?? ""}` };
  const response = await fetch(path, { headers, signal, cache: "no-store" });
  if (!response.ok) {
    const reason = await response.json().catch(() => ({}));
    throw new Refusal(response.status, reason.message ?? response.statusText);
  }
  return response;
}

/** get returns the JSON at a path. */
export async function get(path) {
  return (await ask(path)).json();
}

// The server writes something every 15 seconds.
const longestSilence = 40_000;

/** revisions yields the number of every revision that the server reports, until the connection ends or is aborted. */
export async function* revisions(signal) {
  const silence = new AbortController();
  signal.addEventListener("abort", () => silence.abort(), { once: true });
  let timer = setTimeout(() => silence.abort(), longestSilence);
  try {
    const response = await ask("/api/events", silence.signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), longestSilence);
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const data = /^data: (.*)$/m.exec(text.slice(0, end));
        text = text.slice(end + 2);
        if (data) yield JSON.parse(data[1]).revision;
      }
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}
