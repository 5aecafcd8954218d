// SQL: one read-only statement, and the first rows of its answer.
//
// The box is shown to those who may ask: an empty statement has an empty answer then. An answer stays
// until the next one; polling does not change it. Its names and values are text.
import { harmless, many } from "./numbers.js";
import { button, byId, el, hintWhereCutOff, put, scrolling } from "./elements.js";

const NUMERIC = /^(u?int|float|double|halffloat|decimal)/;
let running = null, askedAs = "";

// The token is kept in this tab only: not in the address, a cookie, or persistent storage.
export function authorized(headers = {}) {
  const token = sessionStorage.getItem("token");
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}
function post(sql, signal = null) {
  const headers = authorized({ "Content-Type": "application/json" });
  return fetch("/api/sql", { method: "POST", cache: "no-store", headers, body: JSON.stringify({ sql }), signal });
}

function offer(form, more = null) {
  byId("asking").hidden = !form;
  put("sql-token", more);
  byId("sql-card").hidden = !form && more === null;
}
export function showQuery(s) {
  const token = sessionStorage.getItem("token"), as = `${s.identity.incarnation} ${token}`;
  if (!s.sql || !s.sql.available) {
    askedAs = "";
    offer(false);
  } else if (as !== askedAs) askWhetherAllowed(as, s.security && s.security.tokens && !token);
}
async function askWhetherAllowed(as, needsToken) {
  askedAs = as;
  clear();
  if (needsToken) return offer(false, el("p", {}, "Queries need a token, even where the status needs none. ", button("Enter a token", "enter")));
  // Read to its end, so that its connection is free.
  const answer = await post("").then((told) => told.text().then(() => told)).catch(() => null);
  if (as !== askedAs) return;
  offer(answer !== null && answer.ok);
  // Busy, or starting: the next round asks again.
  if (answer === null || answer.status === 503) askedAs = "";
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
  const sql = byId("statement").value, mine = running = new AbortController();
  say("Running …");
  try {
    const answer = await post(sql, mine.signal), body = await answer.json();
    if (running !== mine) return;
    running = null;
    if (!answer.ok) return say("", body.message || `HTTP ${answer.status}`);
    byId("sql-answer").replaceChildren(...(body.columns.length ? [scrolling("Answer", table(body))] : []));
    const [first, more] = body.truncated ? ["The first ", "; the rest, or the end of long values, is left out"] : ["", ""];
    say(`${first}${many(body.rows.length, "row")}${more}; ${body.elapsed_ms.toFixed(1)} ms`);
    hintWhereCutOff();
  } catch (error) {
    if (running !== mine) return;
    running = null;
    say("", mine.signal.aborted ? "Stopped." : `No answer (${error.message}).`);
  }
}

// Lines stay lines: an EXPLAIN is a drawing.
function lines(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return document.createTextNode(text.split("\n").map(harmless).join("\n"));
}
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
