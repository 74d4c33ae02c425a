// What is said about a generation beside its text: errors with their remedy, notices, its parameters.

import { element } from "./dom.js";

const REMEDIES = {
  unreachable: "Is it running? Once it answers, send again.",
  connection_lost: "",
  invalid_api_key:
    "Put your key into the field “API key” of the settings, or open the address with #key= that `semspec serve` prints. Whoever runs this gateway makes keys with `semspec key NAME`.",
  service_unavailable: "The list of services at the top shows which service is away. Send again once it is back.",
  overloaded: "All places are taken. Wait a moment, then send again.",
  timeout: "Ask for fewer tokens, or send again when the server has less to do.",
  context_length_exceeded: "Shorten the question, or ask for fewer tokens.",
  invalid_value: "Change the field it names, then send again.",
  model_not_found: "Choose a model from the list.",
  not_found: "Stored generations are kept for a while only. Send the question again.",
  conflict: "Send again in a moment.",
};

const MOST_SPOKEN = 200; // characters of an answer
const LEFT_OUT = "Later messages are asked without this one.";
const STATES = {
  reconnecting: "The connection broke; attaching again.",
  cancelled: `Stopped. ${LEFT_OUT}`,
  failed: `The answer failed here. ${LEFT_OUT}`,
  cut: `The connection broke. What arrived is shown; “Resume” fetches the rest. ${LEFT_OUT}`,
  interrupted: `Its gateway stopped while it wrote this. “Resume” continues from here. ${LEFT_OUT}`,
};

/** `field`: the setting at fault, if it is one. */
export function showError(place, error, field) {
  const remedy = REMEDIES[error.code] ?? "";
  const facts = [error.code, error.status].filter(Boolean).join(", ");
  place.replaceChildren(
    element("p", {}, element("strong", {}, "Error: "), error.message, facts ? element("small", {}, ` (${facts})`) : null),
    element("p", { class: "remedy" }, remedy, " ", field ? settingsButton(field) : null),
  );
}

function settingsButton(field) {
  const button = element("button", { type: "button", class: "plain" }, "Open the settings");
  button.addEventListener("click", () => {
    field.closest("dialog").showModal();
    field.focus();
  });
  return button;
}

/** What is said below an answer, as list items. */
export function notices(generation) {
  const said = [];
  const fallback = generation.summary?.fallback ?? generation.kept.find((record) => record.fallback)?.fallback;
  if (fallback) said.push(`The target wrote alone from some point on: ${fallback}.`);
  if (generation.summary?.degraded) said.push("The trace could not be stored in full: the link may not lead to all of it.");
  if (generation.status === "running" && !generation.segments.length) said.push("Reading the question; the first words follow.");
  if (STATES[generation.status]) said.push(STATES[generation.status]);
  return said.map((notice) => element("li", {}, notice));
}

/** The choices that made this text, in one line. */
export function parametersLine({ parameters, seed, id }) {
  const facts = [];
  if (parameters) {
    facts.push(parameters.strategy, ...rule(parameters), `temperature ${parameters.temperature}`);
  }
  if (seed !== null) facts.push(`seed ${seed}`);
  return element("span", {}, facts.join(" · "), " ", element("code", {}, id ?? ""));
}

/** How `semantic` and `likelihood` accept segments; other strategies have no rule. */
function rule({ strategy, acceptance, strictness, gamma }) {
  const { threshold } = acceptance;
  const limit = threshold === null ? "" : Number(threshold.toFixed(3));
  const asked = typeof strictness === "number" ? [`strictness ${strictness}`] : [];
  if (strategy === "likelihood") return [`gamma ${gamma}`, ...asked, threshold === null ? "calibrated threshold" : `rule probability ≥ ${limit}`];
  if (strategy !== "semantic") return [];
  return [`gamma ${gamma}`, ...asked, acceptance.rule === "sample" || threshold === null ? "rule min(1, p/q)" : `rule p/q ≥ ${limit}`];
}

/** A sentence for screen readers when something has come to an end. */
export function spoken(generation) {
  const decided = generation.numJudged ? `, ${generation.numAccepted} of ${generation.numJudged} drafts accepted` : "";
  const answer = generation.answer?.length <= MOST_SPOKEN ? ` ${generation.answer}` : "";
  return `${generation.status}: ${generation.kept.length} segments${decided}.${answer}`;
}
