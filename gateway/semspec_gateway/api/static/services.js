// The lamps of the services, asked after while somebody looks.

import * as api from "./api.js";
import { element, unseen } from "./dom.js";
import { key } from "./key.js";

const INTERVAL_MS = 5000;

let refused = null; // a key that is not asked with again

/** Returns what looks at once. `notice` says since when the gateway has not answered. */
export function watchServices(list, notice) {
  let since = null;
  const look = async () => {
    if (document.hidden || key() === refused) return;
    const found = await lamps();
    list.replaceChildren(...found);
    const isAway = found[0]?.classList.contains("away") && found.length === 1;
    since = isAway ? (since ?? new Date()) : null;
    notice.textContent = isAway ? words(since) : "";
  };
  look();
  window.addEventListener("online", look);
  setInterval(look, INTERVAL_MS);
  document.addEventListener("visibilitychange", look);
  return look;
}

function words(since) {
  const who = navigator.onLine ? "This gateway does not answer" : "This device has no network, and the gateway does not answer";
  return `${who} (since ${since.toLocaleTimeString()}). What is shown is from before; nothing new can be asked until it answers. The page looks every five seconds.`;
}

async function lamps() {
  const asked = key();
  try {
    const services = await api.services(AbortSignal.timeout(INTERVAL_MS));
    return [lamp({ name: "gateway", status: "ok", detail: "answers" }), ...services.map(lamp)];
  } catch (error) {
    if (error.status === 404) return []; // a gateway that does not tell
    if (error.status === 401) {
      refused = asked;
      return [lamp({ name: "gateway", status: "ok", detail: "answers; the others are shown to those with a key" })];
    }
    return [lamp({ name: "gateway", status: "away", detail: error.message })];
  }
}

function lamp({ name, status, detail }) {
  const isUp = status === "ok";
  return element(
    "li",
    { class: isUp ? "up" : "away", title: detail },
    element("span", { class: "lamp" }),
    `${name} `,
    element("span", { class: isUp ? "unseen" : "word" }, isUp ? "ok" : "away"),
    isUp ? null : unseen(`: ${detail}`),
  );
}
