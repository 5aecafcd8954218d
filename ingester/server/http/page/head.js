// The top of the page: the state in one sentence, alarms, the last minutes, memory, store and disk.
import { bytes, clock, count, digits, harmless, known, many, seconds, share, whole } from "./numbers.js";
import { badge, byId, el, facts, none, put, remedy, styled } from "./elements.js";
import { plot } from "./plots.js";

const STATES = {
  starting: ["calm", "Starting: not ready yet"],
  draining: ["warn", "Draining: refuses writes, flushes everything, answers queries"],
  drained: ["warn", "Drained: everything is in files, the daemon may be stopped"],
  stopping: ["warn", "Stopping: refuses writes, flushes its buffers"],
  fenced: ["bad", "Fenced: another daemon has taken over this identity"],
};
const SEVERITIES = { critical: ["bad", "Critical"], warning: ["warn", "Warning"] };

function alarmsOf(s) { return [...(s.alarms || [])].sort((a, b) => Number(b.severity === "critical") - Number(a.severity === "critical")); }
export function onlyInStore(s) { return s.store_log && s.store_log.disk === false; }
function storeOf(s) { return s.store_state || { state: "unknown" }; }

// Tone and sentence. "Ready" only if no critical alarm is raised.
export function stateOf(s) {
  const { state } = s.identity;
  if (state !== "ready") return STATES[state] || ["bad", state];
  const accepts = s.admission.accepts_writes, store = storeOf(s), away = store.state === "away", alarms = alarmsOf(s);
  const critical = alarms.some((a) => a.severity === "critical"), well = accepts && !away && !critical;
  const writes = !accepts ? "refuses writes" : away ? "accepts writes to open tables only" : "accepts writes", reads = !away ? "answers queries" : store.reads ? "answers queries, cannot flush: the store accepts no writes" : "queries of files fail: the store is unreachable";
  return [critical || (away && !accepts) ? "bad" : well && !alarms.length ? "good" : "warn", `${well ? "Ready" : "Degraded"}: ${writes}, ${reads}`];
}

function alarmItem(a) {
  const [tone, word] = SEVERITIES[a.severity] || ["bad", String(a.severity)];
  return el("li", { class: tone, "data-key": a.name }, badge(word, tone), " ", el("strong", {}, a.name), el("span", { class: "quiet" }, ` since ${clock(a.since)}`),
    el("p", {}, a.message), remedy(a.runbook || a.name));
}

let announced = null;
// Screen readers announce only raised and cleared alarms.
function announce(alarms) {
  const names = new Map(alarms.map((a) => [a.name, a]));
  if (announced === null) put("announce", alarms.length ? `${many(alarms.length, "alarm")}: ${alarms.map((a) => a.name).join(", ")}.` : "No alarms.");
  else {
    const raised = alarms.filter((a) => !announced.has(a.name)), over = [...announced.keys()].filter((name) => !names.has(name));
    if (raised.length || over.length)
      put("announce", [...raised.map((a) => `Alarm, ${a.severity}: ${a.name}. ${a.message}`), ...(over.length ? [`Cleared: ${over.join(", ")}.`] : [])].join(" "));
  }
  announced = names;
}

export function showState(s) {
  const [tone, title] = stateOf(s), alarms = alarmsOf(s);
  const reasons = s.admission.reasons.map((r) => el("li", {}, "Writes are refused: ", el("code", {}, r.code), ": ", r.message,
    known(r.retry_after_s) ? ` (retry after ${seconds(r.retry_after_s)})` : ""));
  put("state", el("strong", {}, title), reasons.length ? el("ul", {}, ...reasons) : null,
    alarms.length || s.identity.state !== "ready" ? null : el("p", { class: "quiet" }, "No alarms."));
  byId("state").className = "banner " + tone;
  put("alarms", alarms.length ? el("ul", { class: "alarms", "aria-label": "Alarms" }, ...alarms.map(alarmItem)) : null);
  announce(alarms);
  document.title = harmless(`${alarms.length ? `(${alarms.length}) ` : ""}${tone === "good" ? "" : "⚠ "}${s.identity.ingester_id}: ${s.identity.state}`);
  put("name", `ingester ${s.identity.ingester_id}`);
  put("since", `Version ${s.identity.version}, up ${seconds(s.identity.uptime_s)}, epoch ${s.identity.epoch}`);
}

export function showSecurity(s) {
  const { insecure, exposed, tls, tokens, certificate } = s.security || {}, said = [];
  if (insecure) {
    const missing = [tls || "TLS", tokens || "tokens"].filter((each) => each !== true).join(" and ");
    said.push(`${exposed.join(" and ")}: other machines reach it without ${missing}, and may do everything.`);
  }
  const alarmed = alarmsOf(s).some((a) => a.name.startsWith("certificate"));
  if (!alarmed && certificate && certificate.ends_in_s < 14 * 86400)
    said.push(certificate.ends_in_s < 0 ? `The certificate expired at ${clock(certificate.not_after)}.` : `The certificate expires at ${clock(certificate.not_after)}.`);
  if (!alarmed && certificate && certificate.problem) said.push(`The changed certificate cannot be loaded: ${certificate.problem}`);
  put("security", said.length ? el("div", { class: "banner warn" }, el("strong", {}, insecure ? "Insecure" : "Certificate"), el("ul", {}, ...said.map((each) => el("li", {}, each)))) : null);
}

// ---- tiles: a value, notes, and its last minutes ----
function tile(label, value, notes, tone, ...drawn) {
  return el("div", { class: `tile ${tone}`, "data-key": label }, el("h3", { class: "label" }, label), el("p", { class: "value" }, value),
    ...notes.filter(Boolean).map((note) => el("p", { class: "note" }, note)), ...drawn);
}
export function showNow(s, history) {
  const r = s.rates.last_10s, m = s.admission.memory, store = storeOf(s), disk = s.disk || {};
  const series = (name) => (history && history.series[name]) || [], last = (name) => series(name).at(-1);
  const draw = (title, unit, lines, limit = null) => (history && lines.some(([, name]) => series(name).length)
    ? [plot(title, lines.map(([name, key]) => ({ name, values: series(key) })), unit, history, limit)] : []);
  const rate = (unit) => (x) => (known(x) ? `${unit(x)}/s` : "–");
  const age = known(s.oldest_unpersisted_s) ? s.oldest_unpersisted_s : null, worst = (names) => (alarmsOf(s).find((a) => names.includes(a.name)) || {}).severity;
  const toned = (...names) => ({ critical: "bad", warning: "warn" }[worst(names)] || "");
  put("now",
    tile("Rows written", rate(count)(r.rows_per_s), [`${rate(count)(r.operations_per_s)} operations`], "", ...draw("Rows written", rate(count), [["", "rows_per_s"]])),
    tile("Bytes written", rate(bytes)(r.bytes_per_s), ["as Arrow data"], "", ...draw("Bytes written", rate(bytes), [["", "bytes_per_s"]])),
    tile("Write latency", seconds(last("write_p99_s")), [known(last("write_p50_s")) ? `p99; p50 ${seconds(last("write_p50_s"))}` : "no writes now"], "", ...draw("Write latency", seconds, [["p99", "write_p99_s"], ["p50", "write_p50_s"]])),
    tile("Queries", rate(count)(r.queries_per_s), [`${many(s.streams.open, "stream")} open, ${whole(s.streams.stalled)} stalled`], "", ...draw("Queries", rate(count), [["", "queries_per_s"]])),
    tile("Memory", bytes(m.used_bytes), [`of ${bytes(m.limit_bytes)}; writes are refused at ${bytes(m.high_bytes)}`], m.used_bytes >= m.high_bytes ? "bad" : toned("memory-high"), ...draw("Memory", bytes, [["", "memory_bytes"]], m.high_bytes)),
    tile("Oldest unflushed row", age === null ? "none" : seconds(age), [s.persist.failed_attempts ? many(s.persist.failed_attempts, "failed flush", "failed flushes") : "no failed flushes"], toned("oldest-row", "persist-failing"), ...draw("Oldest unflushed row", seconds, [["", "oldest_unpersisted_s"]])),
    tile("Waiting to be flushed", bytes(s.persist.queued_bytes), [`${many(s.persist.queued_jobs, "job")} queued, ${whole(s.persist.active)} active`], toned("saturated"), ...draw("Waiting to be flushed", bytes, [["", "queued_bytes"]])),
    onlyInStore(s) ? tile("Log in the store", bytes(s.store_log.bytes), [many(s.store_log.objects, "object")], toned("store-log-stalled"))
      : tile("Log on disk", bytes(s.log.bytes), [known(disk.log_free_bytes) ? `${disk.full ? "disk full: " : ""}${bytes(disk.log_free_bytes)} free of ${bytes(disk.log_total_bytes)}` : many(s.log.segments, "segment")], disk.full ? "bad" : toned("disk-full"), ...draw("Log on disk", bytes, [["", "log_bytes"]])),
    tile("Store", { ok: "reachable", away: "unreachable" }[store.state] || "unknown", [store.state === "away" ? `since ${clock(store.since)}` : store.last_ok_at ? `last answer ${clock(store.last_ok_at)}` : ""], store.state === "away" ? "bad" : toned("store-away"), el("p", { class: "note" }, s.identity.store)));
}

export function showHistory(problem) {
  put("history", problem ? none(`The history is unavailable: ${problem}`) : null);
}

export function showMemory(s) {
  const m = s.admission.memory, kinds = Object.entries(m.by_kind).sort((a, b) => b[1] - a[1]), colour = (i) => `var(--k${Math.min(i, 5)})`;
  const named = kinds.length ? kinds : [["used", m.used_bytes]];
  const parts = named.map(([, used], i) => styled(el("div", { class: "part" }), { width: share(used, m.limit_bytes) + "%", background: colour(i) }));
  const marks = [["low", m.low_bytes], ["high", m.high_bytes]].map(([name, at]) => styled(el("div", { class: `mark ${name}` }, el("span", {}, `${name} ${bytes(at)}`)), { left: share(at, m.limit_bytes) + "%" }));
  const legend = named.map(([name, used], i) => el("li", {}, styled(el("i", { "aria-hidden": "true" }), { background: colour(i) }), `${name}: ${bytes(used)}`));
  const text = `${bytes(m.used_bytes)} of ${bytes(m.limit_bytes)} (${digits(share(m.used_bytes, m.limit_bytes))} %)`;
  const where = m.used_bytes >= m.high_bytes ? ": over the high watermark, writes are refused"
    : m.used_bytes >= m.low_bytes ? ": over the low watermark, buffers are being flushed" : "";
  put("memory", el("p", {}, el("strong", {}, text), where),
    el("div", { class: "bar", role: "img", "aria-label": `${text}; low watermark ${bytes(m.low_bytes)}, high watermark ${bytes(m.high_bytes)}` }, ...parts, ...marks),
    el("ul", { class: "legend" }, ...legend));
}

export function showStore(s) {
  const store = storeOf(s), d = s.disk || {}, c = s.clean_up || {};
  const [word, tone] = { ok: ["reachable", "good"], away: ["unreachable", "bad"] }[store.state] || ["unknown", "calm"];
  put("store", facts([["Store", s.identity.store], ["State", el("span", {}, badge(word, tone), store.since ? ` since ${clock(store.since)}` : "")],
    ["Last answer", store.last_ok_at ? clock(store.last_ok_at) : "–"], ...(store.last_error ? [["Last error", store.last_error]] : []),
    ["Log disk", known(d.log_free_bytes) ? el("span", {}, d.full ? badge("full", "bad") : null, ` ${bytes(d.log_free_bytes)} free of ${bytes(d.log_total_bytes)} (${digits(share(d.log_free_bytes, d.log_total_bytes))} %)`) : "–"],
    ...(known(d.store_free_bytes) ? [["Store disk", `${bytes(d.store_free_bytes)} free of ${bytes(d.store_total_bytes)}`]] : []),
    ...(known(d.spill_free_bytes) ? [["Spill disk", `${bytes(d.spill_free_bytes)} free`]] : []),
    ["Garbage collection", `${whole(c.deleted_objects)} objects deleted (${bytes(c.deleted_bytes)}), ${many(c.runs, "run")}, ${whole(c.failed_runs)} failed${c.last_run_at ? `; last ${clock(c.last_run_at)}` : ""}`]]));
}
