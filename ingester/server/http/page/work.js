// Flushes, log, streams, origins, followers, namespaces, access, identity, errors.
import { bytes, clock, known, many, seconds, whole } from "./numbers.js";
import { badge, byId, el, facts, grid, none, put, remedy, rest } from "./elements.js";
import { onlyInStore } from "./head.js";

const NAMESPACES_SHOWN = 20, ORIGINS_SHOWN = 20, FOLLOWERS_SHOWN = 100, N = "number";

export function showErrors(s) {
  // Without any, the card takes a line of its own instead of a third of the page's height.
  for (const id of ["now-card", "errors-card"]) byId(id).classList.toggle("alone", !s.errors.length);
  if (!s.errors.length) return put("errors", none("None since the start."));
  const items = s.errors.map((e) => el("li", {}, badge(e.level || "warning", { error: "bad", critical: "bad" }[e.level] || "warn"), " ", el("strong", {}, e.event), " ",
    el("time", {}, clock(e.at)), e.message && e.message !== e.event ? el("p", {}, e.message) : null, e.runbook ? remedy(e.runbook) : null));
  put("errors", el("div", { class: "events tall", role: "group", "aria-label": "Newest first", tabindex: "0" }, el("ul", {}, ...items)));
}

// A value, and its quota if there is one.
function beside(x, quota, unit) { return quota ? `${unit(x)} of ${unit(quota)}` : unit(x); }
export function showNamespaces(s) {
  const all = s.namespaces || [], per = (quota, unit) => (quota ? `${unit(quota)}/s` : "–");
  if (!all.length) return put("namespaces", none("No namespace uses anything yet."));
  put("namespaces", grid("Namespaces", [
    ["Namespace", "", (x) => x.namespace], ["Memory", N, (x) => beside(x.bytes, x.quota.buffer_bytes, bytes)],
    ["Over its share", "", (x) => (x.over_share ? "yes: refused first" : "no")], ["Queued", N, (x) => bytes(x.queued_bytes)],
    ["Partitions", N, (x) => beside(x.partitions, x.quota.partitions, whole)], ["Tables", N, (x) => beside(x.tables, x.quota.tables, whole)],
    ["Writers", N, (x) => beside(x.writers, x.quota.streams, whole)], ["Answers", N, (x) => beside(x.answers, x.quota.streams, whole)],
    ["Write quota", N, (x) => per(x.quota.bytes_per_s, bytes)], ["Request quota", N, (x) => per(x.quota.requests_per_s, whole)],
    ["Refused", N, (x) => whole(x.refused)],
  ], all.slice(0, NAMESPACES_SHOWN), (x) => x.namespace), rest(s, "namespaces", NAMESPACES_SHOWN));
}

export function showFollowers(s) {
  const all = s.followers || [];
  byId("followers-card").hidden = !all.length;
  if (!all.length) return;
  const rows = [...all].sort((a, b) => Number(b.alive) - Number(a.alive));
  put("followers", grid("Followers", [
    ["Table", "", (f) => `${f.namespace}.${f.table}`], ["Follower", "", (f) => f.name], ["Alive", "", (f) => (f.alive ? "yes" : "no")],
    ["Serves", "", (f) => `v${f.table_version}`], ["Prepared", "", (f) => f.prepared.map((v) => `v${v}`).join(", ") || "–"],
  ], rows.slice(0, FOLLOWERS_SHOWN)), rest(s, "followers", FOLLOWERS_SHOWN));
}

// The log in the store; nothing while no batch asks for it.
function storeLog(l) {
  const lost = (l && l.lost) || [], operations = lost.reduce((sum, each) => sum + each.operations, 0);
  if (!l || (l.ack === "disk" && l.state === "unused" && !lost.length)) return [];
  const waits = known(l.oldest_waiting_s) ? `${bytes(l.waiting_bytes)}, oldest ${seconds(l.oldest_waiting_s)}` : "nothing";
  return [["Acknowledged at", l.ack + (l.disk ? "" : "; no log on disk")],
    ["In the store", el("span", {}, badge(l.state, { ok: "good", failing: "bad", fenced: "bad" }[l.state] || "calm"), ` ${many(l.puts, "PUT")}, ${bytes(l.put_bytes)}${l.puts ? `, ${seconds(l.put_s / l.puts)} each` : ""}${l.failed_puts ? `; ${whole(l.failed_puts)} failed` : ""}`)],
    ["Waiting for a PUT", waits],
    ...(lost.length ? [["Lost with a disk", badge(`${many(operations, "operation")} of ${many(new Set(lost.map((x) => `${x.namespace}.${x.table}`)).size, "table")}`, "warn")]] : []),
    ...(l.last_error ? [["Last error", l.last_error]] : [])];
}

export function showFlow(s) {
  const p = s.persist, l = s.log, q = s.streams, t = s.transform || {};
  const hung = Object.entries(t.hung_calls || {}).map(([name, n]) => `${name}: ${whole(n)} timed out`).join("; ");
  put("persist", facts([["Queued", `${many(p.queued_jobs, "job")}, ${bytes(p.queued_bytes)}`], ["Active", many(p.active, "job")],
    ["Failed attempts", p.failed_attempts ? badge(whole(p.failed_attempts), "warn") : "0"], ["Since the start", `${many(p.persisted.rows, "row")}, ${many(p.persisted.files, "file")}, ${bytes(p.persisted.bytes)}`],
    ...(t.busy_threads || hung ? [["Transformers", `${many(t.busy_threads, "busy thread")}${hung ? `; ${hung}` : ""}`]] : [])]));
  const onDisk = onlyInStore(s) ? [] : [["On disk", `${many(l.segments, "segment")}, ${bytes(l.bytes)}`], ["Open segment", known(l.open_segment) ? String(l.open_segment) : "–"],
    ["Syncs", whole(l.syncs)], ["Last sync", seconds(l.last_sync_s)], ["Waiting for sync", many(l.pending, "operation")]];
  put("log", facts([...onDisk, ...storeLog(s.store_log)]));
  put("streams", facts([["Query streams", `${whole(q.open)} open, ${whole(q.stalled)} stalled`], ["Waiting followers", whole(q.waiting)], ["Answers on disk", `${many(q.files, "file")}, ${bytes(q.file_bytes)}`],
    ...(s.sql && s.sql.available ? [["SQL", `${whole(s.sql.running)} running, ${whole(s.sql.waiting)} waiting, ${many(s.sql.workers, "worker")}`]] : [])]));
  if (!p.last.length) return put("runs", none("None since the start."));
  put("runs", grid("Last flushes", [
    ["Partition", "path", (r) => `${r.namespace}.${r.table} ${r.partition}`], ["Rows", N, (r) => whole(r.rows)], ["Size", N, (r) => bytes(r.bytes)],
    ["Queued", N, (r) => seconds(r.queued_s)], ["Active", N, (r) => seconds(r.active_s)], ["Total", N, (r) => seconds(r.total_s)],
    ["At", "", (r) => clock(r.at)]], p.last));
}

// The lag of an origin: operations in the log that are not in object storage yet.
function lagOfOrigin(o) {
  if (!known(o.memory_sequence)) return "–";
  return known(o.durable_sequence) ? whole(Math.max(0, o.memory_sequence - o.durable_sequence)) : "all";
}
export function showOrigins(s) {
  const c = s.checkpoints, rows = [...s.origins].sort((a, b) => Number(b.open) - Number(a.open)), parts = [];
  if (!rows.length) parts.push(none("No origins: no writer numbers its writes."));
  else parts.push(grid("Origins", [["Origin", "path", (o) => o.origin], ["In memory", N, (o) => whole(o.memory_sequence)], ["Durable", N, (o) => whole(o.durable_sequence)],
    ["Lag", N, lagOfOrigin], ["Stream", "", (o) => (o.open ? "open" : "closed")]], rows.slice(0, ORIGINS_SHOWN), (o) => o.origin), rest(s, "origins", ORIGINS_SHOWN));
  if (c && c.count) parts.push(none(`${many(c.count, "checkpoint")} of sources, ${bytes(c.bytes)}; ${c.pending ? `${whole(c.pending)} not in object storage yet` : "all in object storage"}.`));
  put("origins", ...parts);
}

// Callers who see only some namespaces do not see the number of tokens.
export function showAccess(s) {
  const x = s.security || {}, t = x.callers || {}, cert = x.certificate;
  put("access", facts([["TLS", x.tls ? (x.client_certificates ? "yes, with client certificates" : "yes") : "no"],
    ["Tokens", x.tokens ? (t.valid ? `${whole(t.valid)} valid` : "required") : "not required"], ["Exposed", (x.exposed || []).join(", ") || "nothing"],
    ...(cert ? [["Certificate", `${cert.subject}, until ${clock(cert.not_after)} (${seconds(cert.ends_in_s)})`], ["Reloads", `${whole(cert.reloads)}, ${whole(cert.failed_reloads)} failed`]] : []),
    ...(x.tokens && t.valid ? [["Audited", `${many(t.audited, "line")}, ${whole(t.audit_left_out)} left out`]] : []),
    ...(t.problems || []).map((problem) => ["Cannot be read", problem])]));
}

function draining(d) {
  if (!d || d.state === "none") return [];
  return [["Drain", `${d.state} since ${clock(d.since)}: ${many(d.buffers, "buffer")}, ${bytes(d.bytes)} unflushed${d.problem ? `; ${d.problem}` : ""}`]];
}
function levels(l) {
  const set = ((l && l.set) || []).map((each) => `${each.logger || "all"}: ${each.level}${each.until ? ` until ${clock(each.until)}` : ""}`);
  return l ? [["Log level", [l.level, ...set].join("; ")]] : [];
}
export function showIdentity(s) {
  const i = s.identity;
  put("identity", facts([["Flight", i.flight], ["HTTP", i.http], ["Store", i.store], ["Incarnation", i.incarnation],
    ["Epoch", String(i.epoch)], ["Process", String(i.pid)], ["Started", clock(i.started_at)], ...draining(s.drain), ...levels(s.log_levels),
    ...(s.adoptions || []).map((a) => ["Adopts", el("span", {}, `${a.directory}: `, badge(a.state, a.problem ? "warn" : "calm"), ` ${many(a.rows, "row")} adopted${a.problem ? `; ${a.problem}` : ""}`)])]));
}
