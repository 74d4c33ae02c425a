// The lamps of the services, asked after while somebody looks.

import * as api from "./api.js";
import { element, unseen } from "./dom.js";

const INTERVAL_MS = 5000;

export function watchServices(list) {
  const look = async () => {
    if (!document.hidden) list.replaceChildren(...(await lamps()));
  };
  look();
  setInterval(look, INTERVAL_MS);
  document.addEventListener("visibilitychange", look);
}

async function lamps() {
  try {
    const services = await api.services(AbortSignal.timeout(INTERVAL_MS));
    return [lamp({ name: "gateway", status: "ok", detail: "answers" }), ...services.map(lamp)];
  } catch (error) {
    if (error.status === 404) return []; // a gateway that does not tell
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
