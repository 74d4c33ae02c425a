// The API key, kept in this tab until it is closed. No server sees it but in the header of a request.

const NAME = "semspec.key";

let kept = ""; // where storage is forbidden

/** The key; empty as long as none was given. */
export function key() {
  try {
    return sessionStorage.getItem(NAME) ?? kept;
  } catch {
    return kept;
  }
}

export function keep(text) {
  kept = text.trim();
  try {
    sessionStorage.setItem(NAME, kept);
  } catch {
    // forbidden: it is known until the page is loaded again
  }
}

/** Take the key out of an address that ends in `#key=…`, which is never sent, and out of the browser's history. */
export function takeFromAddress() {
  const named = new URLSearchParams(location.hash.slice(1));
  const given = named.get("key");
  if (given === null) return;
  keep(given);
  named.delete("key");
  const rest = named.toString();
  history.replaceState(null, "", location.pathname + location.search + (rest && `#${rest}`));
}
