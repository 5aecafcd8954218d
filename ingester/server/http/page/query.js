// SQL: one read-only statement, and the first rows of its answer.
//
// An answer stays until the next one; polling does not change it. Its names and values are text.
import { harmless, many } from "./numbers.js";
import { button, byId, el, hintWhereCutOff, put, scrolling } from "./elements.js";

const NUMERIC = /^(u?int|float|double|halffloat|decimal)/;
let running = null, shownTo = null;

// The token is kept in this tab only: not in the address, a cookie, or persistent storage.
export function authorized(headers = {}) {
  const token = sessionStorage.getItem("token");
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}

// The status says "available" to those who may ask. An answer belongs to its token.
export function showQuery(s) {
  const token = sessionStorage.getItem("token");
  if (token !== shownTo) clear();
  shownTo = token;
  byId("sql-card").hidden = !s.sql || !s.sql.available;
}

function clear() {
  stopQuery();
  running = null;
  say("");
  byId("sql-answer").replaceChildren();
}
function say(said, problem = "") {
  put("sql-said", said);
  put("sql-problem", problem);
  byId("stop").hidden = running === null;
}
export function stopQuery() { if (running !== null) running.abort(); }
export async function runQuery() {
  clear();
  const mine = running = new AbortController(), began = performance.now();
  say("Running …");
  try {
    const asked = JSON.stringify({ sql: byId("statement").value }), headers = authorized({ "Content-Type": "application/json" });
    const answer = await fetch("/api/sql", { method: "POST", cache: "no-store", headers, body: asked, signal: mine.signal });
    const body = await answer.json(), took = performance.now() - began;
    if (running !== mine) return;
    running = null;
    if (answer.status === 401) return say("", el("span", {}, `${body.message} `, button("Enter a token", "enter")));
    if (!answer.ok) return say("", body.message || `HTTP ${answer.status}`);
    byId("sql-answer").replaceChildren(...(body.columns.length ? [scrolling("Answer", table(body))] : []));
    say(`${body.truncated ? "The first " : ""}${many(body.rows.length, "row")}; ${took.toFixed(1)} ms`);
    hintWhereCutOff();
  } catch (error) {
    if (running !== mine) return;
    running = null;
    say("", mine.signal.aborted ? "Stopped." : `No answer (${error.message}).`);
  }
}

// Lines stay lines: an EXPLAIN is a drawing.
const lines = (text) => document.createTextNode(text.split("\n").map(harmless).join("\n"));
function table(answer) {
  const kinds = answer.columns.map((c) => (NUMERIC.test(c.type) ? "number" : "lines"));
  const head = answer.columns.map((c, i) => el("th", { scope: "col", class: kinds[i] }, c.name, el("span", { class: "type" }, c.type)));
  const body = answer.rows.map((row) => el("tr", {}, ...row.map((value, i) => el("td", { class: kinds[i] },
    value === null ? el("span", { class: "quiet" }, "NULL") : lines(value)))));
  return el("table", {}, el("caption", { class: "unseen" }, "Answer"), el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

byId("statement").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  runQuery();
});
