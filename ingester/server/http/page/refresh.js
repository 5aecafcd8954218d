// Polls the daemon every 2 s while the page is visible, and shows the answers; keys, pause, the token.
//
// One round at a time. An answer for a view that is no longer open is dropped. Without an answer the
// last one stays, greyed and marked as old.
import { clock, harmless, known, seconds, whole } from "./numbers.js";
import { button, byId, el, hintWhereCutOff, put, total } from "./elements.js";
import { showHistory, showMemory, showNow, showSecurity, showState, showStore } from "./head.js";
import { isOpen, paths, route, showTables, turnPage, turnTo } from "./tables.js";
import { authorized, runQuery, showQuery, stopQuery } from "./query.js";
import { showPushes } from "./pushes.js";
import { showReplications } from "./replications.js";
import { showAccess, showErrors, showFlow, showFollowers, showIdentity, showNamespaces, showOrigins } from "./work.js";

const REFRESH_MS = 2000, PATIENCE_MS = 5000, HISTORY_MS = 10000, ONE_TABLE_MS = 10000, TYPING_MS = 200;
const PARTS = [showState, showSecurity, showErrors, showMemory, showStore, showFlow, showQuery, showNamespaces, showOrigins, showPushes, showReplications, showFollowers, showAccess, showIdentity];
let lastGood = null, timer = null, paused = false, asking = false, again = false, rounds = 0, history = null, historyAt = -Infinity, historyOf = "", historyProblem = "";
// Ages use the monotonic clock; displayed times use the machine's clock.
const now = () => performance.now();
let lastGoodAt = 0;
// The answers of one table are polled less often: it may have 100,000 partitions.
let kept = { key: "", at: 0, answers: [] };

function sections(s) {
  const numbered = [["alarms-card", "Alarms", (s.alarms || []).length], ["tables-card", "Tables", total(s, "tables")], ["sql-card", "SQL"], ["errors-card", "Errors", s.errors.length],
    ["memory-card", "Memory"], ["store-card", "Store"], ["persist-card", "Flushes", s.persist.queued_jobs], ["pushes-card", "Pushes", (s.pushes || []).length],
    ["replications-card", "Replications", total(s, "replications")], ["followers-card", "Followers", total(s, "followers")], ["origins-card", "Origins", total(s, "origins")],
    ["namespaces-card", "Namespaces", total(s, "namespaces")], ["access-card", "Access"], ["identity-card", "Daemon"]];
  put("sections", ...numbered.filter(([id]) => !byId(id).hidden).map(([id, name, n]) => el("a", { href: `#${id}`, "data-key": id }, name, n ? el("span", { class: "count" }, ` ${whole(n)}`) : null)));
  byId("sections").hidden = false;
}

function show(status, answers) {
  for (const part of PARTS) part(status);
  showNow(status, history);
  showHistory(historyProblem);
  showTables(status, answers);
  sections(status);
  byId("main").hidden = false;
  hintWhereCutOff();
}

// ---- requests ----
function lose(title, why) {
  const age = lastGood ? ` Showing last known values from ${clock(lastGood)} (${seconds(Math.round((now() - lastGoodAt) / 1000))} ago).` : "";
  put("lost", el("strong", {}, title), el("p", {}, `${why}. Retrying every ${REFRESH_MS / 1000} s.`), el("p", { "aria-live": "off" }, age));
  byId("lost").hidden = false;
  byId("main").className = "stale";
  byId("state").hidden = true;
  put("refreshed", "Unreachable.");
  document.title = "⚠ ingester: unreachable";
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", headers: authorized(), signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.ok) return { ok: true, status: answer.status, body: await answer.json() };
  const body = await answer.json().catch(() => ({}));
  return { ok: false, status: answer.status, told: `${body.message || `HTTP ${answer.status}; the daemon's log says more`}.` };
}

function askForToken(told) {
  if (byId("entry").hidden) put("entry", el("strong", {}, "The daemon requires a token"), el("p", { id: "why", role: "alert" }, ""),
    el("form", { id: "enter" }, el("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", "aria-label": "Token", "aria-describedby": "why" }), " ", el("button", { type: "submit" }, "Use token")));
  put("why", sessionStorage.getItem("token") ? `Refused: ${told}` : "“ingester tokens add” creates one; it is kept in this tab only.");
  for (const id of ["lost", "main", "sections"]) byId(id).hidden = true;
  byId("entry").hidden = false;
  put("refreshed", "Waiting for a token.");
  // Polling stops until a token is entered.
  put("since");
  document.title = "⚠ ingester: requires a token";
}

async function askForHistory(incarnation) {
  if (incarnation !== historyOf) [history, historyOf, historyAt] = [null, incarnation, -Infinity];
  if (now() - historyAt < HISTORY_MS) return;
  const answer = await ask("/api/history");
  if (answer.ok) [history, historyProblem] = [answer.body, ""];
  else historyProblem = answer.told;
  historyAt = now();
}

async function askForTables(wanted) {
  const key = JSON.stringify(wanted);
  if (isOpen() && key === kept.key && now() - kept.at < ONE_TABLE_MS) return kept.answers;
  const answers = await Promise.all(wanted.map(ask));
  kept = { key, at: now(), answers };
  return answers;
}

async function round() {
  const wanted = paths(), [status, answers] = await Promise.all([ask("/api/status"), askForTables(wanted)]);
  if (status.status === 401) return askForToken(status.told);
  if (!status.ok) return lose("The daemon returned an error", status.told.replace(/\.$/, ""));
  await askForHistory(status.body.identity.incarnation);
  if (JSON.stringify(wanted) !== JSON.stringify(paths())) return void (again = true);
  byId("state").hidden = false;
  show(status.body, answers);
  [lastGood, lastGoodAt] = [new Date(), now()];
  byId("lost").hidden = byId("entry").hidden = true;
  byId("main").className = "";
  if (paused || document.hidden) markResting();
  put("refreshed", paused ? `Paused. From ${clock(lastGood)}.` : `Refreshed ${clock(lastGood).slice(11)}, every ${REFRESH_MS / 1000} s.`);
  put("leave", sessionStorage.getItem("token") ? button("Forget the token", "forget") : null);
}

// The tab's title stays visible while the page is hidden, so it says that it is paused.
function markResting() { if (!document.title.startsWith("⏸")) document.title = `⏸ ${document.title}`; }

async function refresh() {
  clearTimeout(timer);
  timer = null;
  if (asking) return void (again = true);
  [asking, again] = [true, false];
  try {
    await round();
  } catch (error) {
    lose("The daemon is unreachable", error.name === "TimeoutError" ? `No answer within ${PATIENCE_MS / 1000} s` : `No connection (${error.message})`);
  }
  asking = false;
  document.documentElement.dataset.rounds = ++rounds;
  if (again) return refresh();
  if (!document.hidden && !paused && byId("entry").hidden) timer = setTimeout(refresh, REFRESH_MS);
}

// ---- actions ----
const ACTS = {
  pause() { paused = !paused; byId("pause").textContent = paused ? "Resume" : "Pause"; byId("pause").setAttribute("aria-pressed", String(paused)); refresh(); },
  keys() { byId("keys").showModal(); },
  shut() { byId("keys").close(); },
  stop: stopQuery,
  enter() { clearTimeout(timer); askForToken(""); byId("token").focus(); },
  forget() { sessionStorage.removeItem("token"); refresh(); },
  next() { if (turnPage(true)) refresh(); },
  before() { if (turnPage(false)) refresh(); },
};
const KEYS = {
  "/": () => { goTo("tables-card"); byId("find").focus(); }, "?": ACTS.keys, a: () => goTo("alarms-card"), t: () => goTo("tables-card"), q: () => { if (!byId("sql-card").hidden) { goTo("sql-card"); byId("statement").focus({ preventScroll: true }); } }, e: () => goTo("errors-card"),
  r: () => { kept.at = -Infinity; refresh(); }, p: ACTS.pause, n: ACTS.next, b: ACTS.before, Escape: () => { if (isOpen()) location.hash = "#tables-card"; },
};
function goTo(id) { byId(id).scrollIntoView({ block: "start" }); byId(id).focus({ preventScroll: true }); }

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-act]");
  if (pressed) ACTS[pressed.dataset.act]();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea, dialog"), act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (!act || event.ctrlKey || event.metaKey || event.altKey || byId("main").hidden) return;
  if (event.key === "Escape" ? event.target.closest("dialog") : typing || !byId("shortcuts").checked) return;
  event.preventDefault();
  act();
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.target.id === "asking") return void runQuery();
  if (event.target.id !== "enter") return;
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  byId("entry").hidden = true;
  refresh();
});
let typed = null;
byId("find").addEventListener("input", (event) => {
  clearTimeout(typed);
  typed = setTimeout(() => { turnTo({ match: event.target.value.trim() }); refresh(); }, TYPING_MS);
});
byId("order").addEventListener("change", (event) => { turnTo({ order: event.target.value }); refresh(); });
byId("rows").addEventListener("change", (event) => { turnTo({ rows: Number(event.target.value) }); refresh(); });
window.addEventListener("hashchange", () => {
  if (!route(location.hash)) return;
  clearTimeout(typed);  // the typed text was meant for the previous view
  goTo("tables-card");
  refresh();
});
window.addEventListener("resize", hintWhereCutOff);

// Stop polling while the page is hidden.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { clearTimeout(timer); timer = null; put("refreshed", "Paused while hidden."); markResting(); }
  else if (!paused && byId("entry").hidden) refresh();
});
const opened = route(location.hash);
refresh().then(() => { if (opened) goTo("tables-card"); });
