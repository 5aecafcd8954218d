"use strict";
const REFRESH_MS = 2000, PATIENCE_MS = 5000, HISTORY = 90, TABLES_SHOWN = 100, NAMESPACES_SHOWN = 20, ORIGINS_SHOWN = 30, PUSHES_SHOWN = 5, FOLLOWERS_SHOWN = 100, REPLICATIONS_SHOWN = 20, REPLICATED_SHOWN = 100, FOLLOWING_SHOWN = 10;
const WAY = ["STARTED", "WRITING", "COMPLETED", "WAITING", "SERVING"];
const TONES = { WAITING: "warn", SERVING: "good", ROLLED_BACK: "bad", ABORTED: "bad", FAILED: "bad" };
const RATES = [["rows_per_s", "Rows", count, "/s"], ["bytes_per_s", "Arrow bytes", bytes, "/s"],
               ["operations_per_s", "Operations", count, "/s"], ["queries_per_s", "Queries", count, "/s"]];
const seen = Object.fromEntries(RATES.map(([key]) => [key, []]));
let lastGood = null, timer = null, incarnation = null;
// The keys after which the pages of all tables begin that were turned to; none: the busiest are shown.
let turned = [];

// ---- numbers with units ----
function digits(x) { return x >= 100 || Number.isInteger(x) ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2); }
function scaled(x, step, units) {
  let i = 0;
  while (x >= step * 0.9995 && i < units.length - 1) { x /= step; i++; }
  return digits(x) + units[i];
}
function known(x) { return typeof x === "number" && Number.isFinite(x); }
function count(x) { return known(x) ? scaled(x, 1000, ["", " k", " M", " G", " T"]) : "–"; }
function bytes(x) { return known(x) ? scaled(x, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) : "–"; }
function whole(x) { return known(x) ? x.toLocaleString("en-US") : "–"; }
function many(x, one) { return known(x) ? `${whole(x)} ${one}${x === 1 ? "" : "s"}` : "–"; }
function seconds(x) {
  if (!known(x)) return "–";
  if (x < 0.001) return digits(x * 1e6) + " µs";
  if (x < 1) return digits(x * 1e3) + " ms";
  if (x < 120) return digits(x) + " s";
  if (x < 7200) return digits(x / 60) + " min";
  if (x < 172800) return digits(x / 3600) + " h";
  return digits(x / 86400) + " days";
}
// UTC, as in the log.
function clock(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? String(iso) : at.toISOString().slice(0, 19).replace("T", " ") + " Z";
}

// ---- elements; text only ever goes in as text ----
// What acts, turns the text after it or does not show is shown by its number, as in shown_text.py.
const HIDDEN = /[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]/g;
function harmless(x) { return String(x).replace(HIDDEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`); }
const SVG = "http://www.w3.org/2000/svg";
function byId(id) { return document.getElementById(id); }
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null).map((c) => c instanceof Node ? c : harmless(c)));
  return node;
}
function el(tag, attributes = {}, ...children) { return fill(document.createElement(tag), attributes, children); }
function svg(tag, attributes = {}, ...children) { return fill(document.createElementNS(SVG, tag), attributes, children); }
function put(id, ...children) { byId(id).replaceChildren(...children); }
function facts(pairs) { return el("dl", {}, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])); }
function none(text) { return el("p", { class: "quiet" }, text); }

// columns: [heading, kind, cell text or element]; the first column is the row's header.
function rowsOf(columns, rows) {
  const kind = (k) => (k ? { class: k } : {});
  const head = el("tr", {}, ...columns.map(([name, k]) => el("th", { scope: "col", ...kind(k) }, name)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, k, text], i) => {
    const shown = text(row);
    return i === 0 ? el("th", { scope: "row", title: shown }, shown) : el("td", kind(k), shown);
  })));
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
}

function grid(id, label, columns, rows) {
  const old = byId(id).querySelector(".scroll"), left = old ? old.scrollLeft : 0, focused = old && old === document.activeElement;
  const scroll = el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: "0" }, rowsOf(columns, rows));
  put(id, scroll);
  scroll.scrollLeft = left;
  if (focused) scroll.focus({ preventScroll: true });
}

// Put what is new in the place of what was there, which stays scrolled and focused as it was.
function renew(id, parts) {
  const scrolled = () => [...byId(id).querySelectorAll(".scroll, .events")];
  const at = new Map(scrolled().map((e) => [e.getAttribute("aria-label"), [e.scrollLeft, e.scrollTop, e === document.activeElement]]));
  put(id, ...parts);
  scrolled().forEach((e) => {
    const [left, top, focused] = at.get(e.getAttribute("aria-label")) || [0, 0, false];
    [e.scrollLeft, e.scrollTop] = [left, top];
    if (focused) e.focus({ preventScroll: true });
  });
}

// ---- parts of the page ----
function showState(s) {
  const { state } = s.identity, { accepts_writes: accepts, reasons } = s.admission;
  const [tone, title] = {
    starting: ["calm", "Starting: not ready yet"],
    ready: accepts ? ["good", "Ready: takes writes, answers queries"] : ["warn", "Refusing writes; queries are answered"],
    draining: ["warn", "Draining: refuses writes, persists everything, answers queries"],
    drained: ["warn", "Drained: everything is in files, it may be stopped"],
    stopping: ["warn", "Stopping: refuses writes, persists what is buffered"],
    fenced: ["bad", "Fenced: another daemon has taken over this identity"],
    failed: ["bad", "Failed: an operator must look"],
  }[state] || ["bad", state];
  const list = reasons.map((r) => el("li", {}, el("code", {}, r.code), ": ", r.message,
    known(r.retry_after_s) ? ` (retry after ${seconds(r.retry_after_s)})` : ""));
  const box = byId("state"), next = el("div", {}, el("strong", {}, title), list.length ? el("ul", {}, ...list) : null);
  // Only a change is read out by a screen reader.
  if (box.innerHTML !== next.innerHTML) box.replaceChildren(...next.childNodes);
  box.className = "banner " + tone;
  document.title = (tone === "good" ? "" : "⚠ ") + `${s.identity.ingester_id}: ${state}`;
  byId("name").textContent = harmless(`ingester ${s.identity.ingester_id}`);
  byId("since").textContent = `Version ${s.identity.version}, up ${seconds(s.identity.uptime_s)}, epoch ${s.identity.epoch}`;
}

function showSecurity(s) {
  const { insecure, exposed, tls, tokens, certificate } = s.security || {}, said = [];
  if (insecure) {
    const missing = [tls || "TLS", tokens || "tokens"].filter((each) => each !== true).join(" and ");
    said.push(el("li", {}, `${exposed.join(" and ")}: other machines reach it without ${missing}. Whoever does may do everything.`));
  }
  if (certificate && certificate.ends_in_s < 14 * 86400)
    said.push(el("li", {}, certificate.ends_in_s < 0 ? `The certificate has ended at ${clock(certificate.not_after)}.` : `The certificate ends at ${clock(certificate.not_after)}.`));
  if (certificate && certificate.problem) said.push(el("li", {}, `Changed certificates are not taken up: ${certificate.problem}`));
  const box = byId("security"), next = el("div", {});
  if (said.length) next.append(el("strong", {}, insecure ? "Insecure" : "Certificate"), el("ul", {}, ...said));
  if (box.innerHTML !== next.innerHTML) box.replaceChildren(...next.childNodes);
  box.hidden = !said.length;
}

function sparkline(values) {
  const top = Math.max(...values, 1e-9), last = HISTORY - 1, start = HISTORY - values.length;
  const points = values.map((v, i) => `${start + i},${(30 - 28 * v / top).toFixed(2)}`);
  return svg("svg", { viewBox: `0 0 ${last} 31`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polygon", { class: "area", points: `${start},31 ${points.join(" ")} ${last},31` }),
    svg("polyline", { class: "edge", points: points.join(" ") }));
}

function showRates(s) {
  put("rates", ...RATES.map(([key, label, unit, per]) => {
    const values = seen[key];
    values.push(s.rates.last_10s[key] || 0);
    if (values.length > HISTORY) values.shift();
    return el("div", { class: "tile" }, el("div", { class: "label" }, label),
      el("div", { class: "value" }, unit(s.rates.last_10s[key]) + per), sparkline(values),
      el("div", { class: "note" }, `last 60 s: ${unit(s.rates.last_60s[key])}${per}`),
      el("div", { class: "note" }, `peak of ${seconds(values.length * REFRESH_MS / 1000)}: ${unit(Math.max(...values))}${per}`));
  }));
}

function showMemory(s) {
  const m = s.admission.memory, share = (x) => (m.limit_bytes > 0 ? Math.min(100, 100 * x / m.limit_bytes) : 0);
  const kinds = Object.entries(m.by_kind).sort((a, b) => b[1] - a[1]);
  const named = kinds.length ? kinds : [["used", m.used_bytes]];
  const colour = (i) => `var(--k${Math.min(i, 5)})`;
  const parts = named.map(([, used], i) => {
    const part = el("div", { class: "part" });
    part.style.width = share(used) + "%"; part.style.background = colour(i);
    return part;
  });
  const marks = [["low", m.low_bytes], ["high", m.high_bytes]].map(([name, at]) => {
    const mark = el("div", { class: "mark" }, el("span", {}, `${name} ${bytes(at)}`));
    mark.style.left = share(at) + "%";
    return mark;
  });
  const legend = named.map(([name, used], i) => {
    const dot = el("i", { "aria-hidden": "true" });
    dot.style.background = colour(i);
    return el("li", {}, dot, `${name}: ${bytes(used)}`);
  });
  const text = `${bytes(m.used_bytes)} of ${bytes(m.limit_bytes)} (${digits(share(m.used_bytes))} %)`;
  const where = m.used_bytes >= m.high_bytes ? ": over the high watermark, writes are refused"
    : m.used_bytes >= m.low_bytes ? ": over the low watermark, buffers are being persisted" : "";
  put("memory", el("p", {}, el("strong", {}, text), where),
    el("div", { class: "bar", role: "img", "aria-label": `${text}; low watermark ${bytes(m.low_bytes)}, high watermark ${bytes(m.high_bytes)}` }, ...parts, ...marks),
    el("ul", { class: "legend" }, ...legend));
}

// How many a list has in all; an older daemon's status has every one.
function total(s, list) { return (s.counts && s.counts[list]) || (s[list] || []).length; }
function button(text, act) {
  const made = el("button", { type: "button" }, text);
  made.addEventListener("click", act);
  return made;
}
function turn(keys) { turned = keys; clearTimeout(timer); refresh(); }

function showTables(s, page) {
  if (!s.tables.length) return put("tables", none("No tables yet: the first write makes one."));
  const rows = page ? page.items : [...s.tables].sort((a, b) => b.buffered.bytes - a.buffered.bytes);
  const n = "number";
  grid("tables", "Tables", [
    ["Table", "", (t) => `${t.namespace}.${t.table}`],
    ["Buffered rows", n, (t) => whole(t.buffered.rows)], ["Buffered memory", n, (t) => bytes(t.buffered.bytes)],
    ["Partitions", n, (t) => whole(t.buffered.partitions)], ["Oldest", n, (t) => seconds(t.oldest_buffered_s)],
    ["Persisted rows", n, (t) => whole(t.persisted.rows)], ["Files' size", n, (t) => bytes(t.persisted.bytes)],
    ["Files", n, (t) => whole(t.persisted.files)], ["Checkpoints", n, (t) => whole(t.checkpoints && t.checkpoints.count)],
    ["Version", n, (t) => whole(t.manifest_version)],
  ], rows.slice(0, TABLES_SHOWN));
  showTurning(total(s, "tables"), page);
}

// Made anew only when it changes: a button keeps its focus.
function showTurning(all, page) {
  const state = JSON.stringify([all, page && turned, page && page.next]), box = byId("turning");
  if (box.shows === state) return;
  box.shows = state;
  if (page) put("turning", `Page ${turned.length} of all ${whole(all)} by name. `, button("The busiest", () => turn([])),
    ...(turned.length > 1 ? [button("Page before", () => turn(turned.slice(0, -1)))] : []), ...(page.next === null ? [] : [button("Next page", () => turn([...turned, page.next]))]));
  else put("turning", ...(all > TABLES_SHOWN ? [`${whole(all - TABLES_SHOWN)} more, with less buffered. `, button("All by name", () => turn([""]))] : []));
}

// What a namespace has, beside its quota where it has one.
function beside(x, quota, unit) { return quota ? `${unit(x)} of ${unit(quota)}` : unit(x); }
function showNamespaces(s) {
  const all = s.namespaces || [], n = "number";
  if (!all.length) return put("namespaces", none("None has anything yet."));
  const per = (quota, unit) => (quota ? `${unit(quota)}/s` : "–");
  grid("namespaces", "Namespaces", [
    ["Namespace", "", (x) => x.namespace], ["Memory", n, (x) => beside(x.bytes, x.quota.buffer_bytes, bytes)],
    ["More than its share", "", (x) => (x.over_share ? "yes: refused first" : "no")], ["Queued", n, (x) => bytes(x.queued_bytes)],
    ["Partitions", n, (x) => beside(x.partitions, x.quota.partitions, whole)], ["Tables", n, (x) => beside(x.tables, x.quota.tables, whole)],
    ["Writers", n, (x) => beside(x.writers, x.quota.streams, whole)], ["Answers", n, (x) => beside(x.answers, x.quota.streams, whole)],
    ["May write", n, (x) => per(x.quota.bytes_per_s, bytes)], ["May ask", n, (x) => per(x.quota.requests_per_s, whole)],
    ["Refused", n, (x) => whole(x.refused)],
  ], all.slice(0, NAMESPACES_SHOWN));
  const more = total(s, "namespaces") - NAMESPACES_SHOWN;
  if (more > 0) byId("namespaces").append(none(`${whole(more)} more in /api/status/namespaces.`));
}

// ---- pushes: what their leaders have told of them last ----
function tone(status) { return TONES[status] || "calm"; }
function badge(status) { return el("span", { class: `badge ${tone(status)}` }, status); }
// The way of a region, as far as it has come; one that was given up keeps an empty one.
function way(status) {
  const at = WAY.indexOf(status);
  return el("span", { class: `way ${tone(status)}`, "aria-hidden": "true" }, ...WAY.map((_, i) => el("i", i <= at ? { class: "done" } : {})));
}
function waitsOf(x) {
  const said = [];
  if (x.unreachable_since) said.push(`not reached since ${clock(x.unreachable_since)}`);
  if (x.lagging && x.lagging.length) said.push(`followers: ${x.lagging.join(", ")}`);
  const step = x.step;
  if (step) {
    const hooks = step.waits.map((w) => (w.reason ? `${w.hook}: ${w.reason}` : w.hook));
    const next = step.next_at ? `asked again at ${clock(step.next_at)}` : "being asked";
    said.push(`${step.method} ${hooks.length ? `waits (${hooks.join("; ")}), ` : ""}${next}`);
  }
  return said.join("; ");
}
function versions(r) { return r.table_version === null ? "–" : `v${r.table_version}${r.previous === null ? "" : ` (before: v${r.previous})`}`; }
function titleOf(p) { return `${p.namespace}.${p.table}: push ${p.push_id}`; }
function endOf(p) { return p.ending ? `${p.ending.kind}: ${p.ending.reason}` : ""; }

function fullPush(p) {
  const waits = waitsOf(p), order = p.target ? `${p.order}, target ${p.target}` : p.order;
  const told = `order ${order}; kept in region ${p.kept_in.region} (${p.kept_in.url}); led by ${p.leader.controller}`;
  const regions = rowsOf([
    ["Region", "", (r) => r.name], ["Status", "", (r) => el("span", {}, way(r.status), badge(r.status))], ["Since", "", (r) => clock(r.since)],
    ["Version", "", versions], ["Waits for, or why", "text", (r) => [waitsOf(r), r.reason].filter(Boolean).join("; ") || "–"]], p.regions);
  const events = [...p.events].reverse().map((e) => el("li", {}, el("time", {}, clock(e.at)), e.region === null ? "" : `${e.region}: `, e.what));
  return el("div", { class: "push" }, el("h3", {}, titleOf(p), " ", badge(p.status)),
    el("p", { class: "quiet" }, `Since ${clock(p.since)}; began ${clock(p.began_at)}${p.ended_at ? `, ended ${clock(p.ended_at)}` : ""}`),
    p.led || p.ended_at ? null : el("p", { class: "caution" }, el("strong", {}, `Nobody leads it: last told of ${seconds(p.told_s)} ago.`), " A controller that runs takes it over."),
    p.ending ? el("p", {}, el("strong", {}, p.ending.kind), `: ${p.ending.reason}`) : null, waits ? el("p", {}, waits) : null,
    el("div", { class: "scroll", role: "region", "aria-label": `Regions of push ${p.push_id}`, tabindex: "0" }, regions),
    el("ul", { class: "events", role: "region", "aria-label": `Events of push ${p.push_id}`, tabindex: "0" }, ...events),
    el("p", { class: "quiet" }, told));
}

function showPushes(s) {
  const pushes = s.pushes || [], how = s.push_reading || { unreadable: [], left_out: 0, failure: null };
  byId("pushes-card").hidden = !pushes.length && !how.unreadable.length && how.failure === null;
  // Those under way come first; where there is none, the one that has ended last is shown in full.
  const full = Math.min(PUSHES_SHOWN, Math.max(1, pushes.filter((p) => !p.ended_at).length));
  const rest = pushes.slice(full), parts = pushes.slice(0, full).map(fullPush);
  if (rest.length) {
    const table = rowsOf([["Push", "", titleOf], ["Status", "", (p) => badge(p.status)], ["Regions", "", (p) => p.regions.map((r) => r.name).join(", ")],
      ["Began", "", (p) => clock(p.began_at)], ["Ended", "", (p) => (p.ended_at ? clock(p.ended_at) : p.led ? "–" : "nobody leads it")], ["Why", "text", (p) => endOf(p) || "–"]], rest);
    parts.push(el("div", { class: "push scroll", role: "region", "aria-label": "Other pushes", tabindex: "0" }, table));
  }
  if (how.failure !== null) parts.push(el("p", { class: "caution" }, `Not read since ${how.read_at ? clock(how.read_at) : "the start"}: ${how.failure}`));
  for (const bad of how.unreadable) parts.push(el("p", { class: "caution" }, `${bad.path} cannot be shown: ${bad.reason}`));
  if (how.left_out) parts.push(none(`${whole(how.left_out)} older ones are not shown.`));
  renew("pushes", parts);
}

// ---- replications: what their replicators have told of them last ----
const PHASES = { set_aside: ["bad", "set aside"], copying: ["calm", "copying"], catching_up: ["calm", "catching up"], waiting: ["warn", "waiting"], left: ["calm", "left the source"], following: ["good", "following"] };
function phaseBadge(phase, text = "", holds = true) {
  const [tone, name] = PHASES[phase] || ["calm", String(phase)];
  return el("span", { class: `badge ${holds ? tone : "calm"}` }, text + name);
}
function lagOf(x) { return known(x.lag_s) ? seconds(x.lag_s) + (known(x.lag_bytes) ? `, ${bytes(x.lag_bytes)}` : "") : known(x.lag_bytes) ? bytes(x.lag_bytes) : "–"; }
function progressOf(t) {
  if (t.phase !== "copying" || !known(t.rows_done)) return "";
  const share = t.rows_total > 0 ? ` of about ${whole(t.rows_total)} rows (${digits(Math.min(100, 100 * t.rows_done / t.rows_total))} %)` : " rows";
  return `${whole(t.rows_done)}${share}${known(t.bytes_done) ? `, ${bytes(t.bytes_done)}` : ""}`;
}
// A table that does not follow: reasons are sentences, which want the whole width.
function troubled(t) {
  const more = [progressOf(t), t.since ? `since ${clock(t.since)}` : "", known(t.lag_s) || known(t.lag_bytes) ? `behind by ${lagOf(t)}` : ""].filter(Boolean).join("; ");
  const source = t.source === t.table ? "" : ` from ${t.source}`;
  return el("li", {}, el("p", {}, el("strong", {}, t.table), source, " ", phaseBadge(t.phase), " ", el("span", { class: "quiet" }, more)), t.reason ? el("p", {}, t.reason) : null,
    ...t.helps.map((text) => el("p", {}, el("strong", {}, "To do: "), text)), ...t.notes.map((text) => el("p", { class: "quiet" }, `Note: ${text}`)));
}

function fullReplication(r) {
  const following = r.tables.filter((t) => t.phase === "following"), others = r.tables.filter((t) => t.phase !== "following");
  const apart = others.slice(0, REPLICATED_SHOWN), well = following.slice(0, FOLLOWING_SHOWN), shown = [...apart, ...well];
  const rest = Object.entries(r.phases).map(([phase, n]) => [phase, n - shown.filter((t) => t.phase === phase).length]).filter(([, n]) => n > 0);
  const unnamed = Object.values(r.left_out).reduce((sum, n) => sum + n, 0);
  const [tone, state] = r.alive ? (r.state === "running" ? ["good", "running"] : ["warn", "trying again"]) : r.state === "ended" ? ["bad", "ended"] : ["bad", "not heard of"];
  const warn = (strong, text) => el("p", { class: "caution" }, el("strong", {}, strong), text);
  const heard = `${clock(r.heard_at)} (${seconds(r.heard_s)} ago)`;
  const n = "number", where = `${r.namespace} from ${r.source}`, region = (label, more) => ({ role: "region", "aria-label": `${label} of ${where}`, tabindex: "0", ...more });
  const table = rowsOf([
    ["Table", "", (t) => t.table], ["Source", "", (t) => t.source], ["Follows since", "", (t) => (t.since ? clock(t.since) : "–")],
    ["Behind by", n, lagOf], ["Changes of rows", n, (t) => whole(t.rows)], ["Notes", "text", (t) => t.notes.join("; ") || "–"]], well);
  return el("div", { class: "push" }, el("h3", {}, `${where} `, el("span", { class: `badge ${tone}` }, state)),
    el("p", {}, `Behind by ${lagOf(r)}${r.alive ? "" : " when it was heard last"}; ${known(r.slot_bytes) ? `the source keeps ${bytes(r.slot_bytes)} of its log for slot` : "slot"} ${r.slot}; last heard ${heard}.`),
    r.alive ? null : r.state === "ended" ? warn(`Ended: ${r.reason || "it was stopped"}.`, " Nothing is followed until it is started again; what is shown below is from then.")
      : warn(`Not heard of since ${heard}.`, " Nothing may be followed: see whether the replicator runs. What is shown below is from then."),
    r.alive && r.state === "trying_again" ? warn("Trying again:", ` ${r.reason} (${many(r.retries, "failed session")})`) : null,
    r.rivals ? warn(`${r.rivals + 1} replicators report this origin in turns.`, " Stop all but one, or give each its own --origin and --slot.") : null,
    el("p", {}, r.alive ? "" : "When it was heard last: ", ...Object.entries(r.phases).filter(([, n]) => n).flatMap(([phase, n]) => [phaseBadge(phase, `${whole(n)} `, r.alive || phase === "set_aside"), " "])),
    apart.length ? el("ul", region("Tables that do not follow", { class: "scroll troubled" }), ...apart.map(troubled)) : null,
    well.length ? el("div", region("Tables that follow", { class: "scroll" }), table) : null,
    rest.length ? none(`Not shown: ${rest.map(([phase, n]) => `${whole(n)} ${(PHASES[phase] || ["", phase])[1]}`).join(", ")}; ${unnamed ? `all but ${whole(unnamed)} of them are` : "all are"} in /api/status/replications.`) : null,
    el("p", { class: "quiet" }, `Origin ${r.origin}; durable here up to ${r.position || "–"} of the source's log`));
}

function showReplications(s) {
  const all = s.replications || [];
  byId("replications-card").hidden = !all.length;
  const parts = all.slice(0, REPLICATIONS_SHOWN).map(fullReplication);
  const more = total(s, "replications") - parts.length;
  if (more > 0) parts.push(none(`${whole(more)} more in /api/status/replications.`));
  renew("replications", parts);
}

function showFollowers(s) {
  const all = s.followers || [];
  byId("followers-card").hidden = !all.length;
  if (!all.length) return;
  const rows = [...all].sort((a, b) => Number(b.alive) - Number(a.alive));
  grid("followers", "Followers", [
    ["Table", "", (f) => `${f.namespace}.${f.table}`], ["Follower", "", (f) => f.name], ["Alive", "", (f) => (f.alive ? "yes" : "no")],
    ["Shows", "", (f) => `v${f.table_version}`], ["Has prepared", "", (f) => f.prepared.map((v) => `v${v}`).join(", ") || "–"],
  ], rows.slice(0, FOLLOWERS_SHOWN));
  const more = total(s, "followers") - FOLLOWERS_SHOWN;
  if (more > 0) byId("followers").append(none(`${whole(more)} more in /api/status/followers.`));
}

function showFlow(s) {
  const p = s.persist, l = s.log;
  put("persist", facts([["Queued", `${many(p.queued_jobs, "job")}, ${bytes(p.queued_bytes)}`], ["Active", many(p.active, "job")],
    ["Failed attempts", whole(p.failed_attempts)], ["Done since start", `${many(p.persisted.rows, "row")}, ${many(p.persisted.files, "file")}, ${bytes(p.persisted.bytes)}`]]));
  put("log", facts([["On disk", `${many(l.segments, "segment")}, ${bytes(l.bytes)}`], ["Open segment", known(l.open_segment) ? String(l.open_segment) : "–"],
    ["Syncs", whole(l.syncs)], ["Last sync took", seconds(l.last_sync_s)], ["Waiting for sync", many(l.pending, "operation")]]));
  put("streams", facts([["Open", whole(s.streams.open)], ["Stalled clients", whole(s.streams.stalled)], ["Waiting followers", whole(s.streams.waiting)], ["Files of answers", whole(s.streams.files)]]));
  if (!p.last.length) return put("runs", none("None since the start."));
  const n = "number";
  grid("runs", "Last persists", [
    ["Partition", "", (r) => `${r.namespace}.${r.table} ${r.partition}`], ["Rows", n, (r) => whole(r.rows)], ["Size", n, (r) => bytes(r.bytes)],
    ["Queued", n, (r) => seconds(r.queued_s)], ["Active", n, (r) => seconds(r.active_s)], ["Total", n, (r) => seconds(r.total_s)],
    ["At", "", (r) => clock(r.at)]], p.last);
}

function showRest(s) {
  const i = s.identity, n = "number";
  if (!s.origins.length) put("origins", none("No origins: nobody numbers their writes."));
  else {
    const rows = [...s.origins].sort((a, b) => Number(b.open) - Number(a.open));
    grid("origins", "Origins", [["Origin", "", (o) => o.origin], ["In memory", n, (o) => whole(o.memory_sequence)],
      ["Durable", n, (o) => whole(o.durable_sequence)], ["Stream", "", (o) => (o.open ? "open" : "closed")]], rows.slice(0, ORIGINS_SHOWN));
    const more = total(s, "origins") - ORIGINS_SHOWN;
    if (more > 0) byId("origins").append(none(`${whole(more)} more in /api/status/origins.`));
  }
  const c = s.checkpoints;
  if (c && c.count) byId("origins").append(none(`${many(c.count, "checkpoint")} of sources, ${bytes(c.bytes)}; ${c.pending ? `${whole(c.pending)} not in object storage yet` : "all in object storage"}.`));
  put("identity", facts([["Flight", i.flight], ["HTTP", i.http], ["Store", i.store], ["Incarnation", i.incarnation],
    ["Epoch", String(i.epoch)], ["Process", String(i.pid)], ["Started", clock(i.started_at)]]));
  if (!s.errors.length) return put("errors", none("None since the start."));
  grid("errors", "Last warnings and errors", [["Event", "", (e) => e.event], ["Level", "", (e) => e.level], ["At", "", (e) => clock(e.at)],
    ["Message", "text", (e) => e.message], ["Runbook", "", (e) => e.runbook || "–"]], s.errors);
}

function show(s, page) {
  if (incarnation !== s.identity.incarnation) for (const values of Object.values(seen)) values.length = 0;
  incarnation = s.identity.incarnation;
  for (const part of [showState, showSecurity, showRates, showMemory, showTables, showNamespaces, showPushes, showReplications, showFollowers, showFlow, showRest]) part(s, page);
  byId("main").hidden = false;
}

// ---- refreshing ----
function lose(title, why) {
  const since = lastGood ? ` What is shown below is from ${clock(lastGood)}.` : "";
  const next = el("div", {}, el("strong", {}, title), el("p", {}, `${why}.${since} Trying again every ${REFRESH_MS / 1000} s.`));
  const box = byId("lost");
  if (box.hidden || box.innerHTML !== next.innerHTML) box.replaceChildren(...next.childNodes);
  box.hidden = false;
  byId("state").hidden = true;
  byId("main").className = "stale";
  document.title = "⚠ ingester: not reached";
}

// The token stays in this tab: not in an address, a cookie, or what outlives the tab.
function ask(path) {
  const token = sessionStorage.getItem("token"), headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(path, { cache: "no-store", headers, signal: AbortSignal.timeout(PATIENCE_MS) });
}

function askForToken(why) {
  const field = el("input", { type: "password", autocomplete: "off", spellcheck: "false", "aria-label": "Token" });
  const use = () => { sessionStorage.setItem("token", field.value.trim()); byId("entry").hidden = true; clearTimeout(timer); refresh(); };
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") use(); });
  put("entry", el("strong", {}, "The daemon asks for a token"), el("p", {}, why), field, " ", button("Use it", use));
  for (const id of ["lost", "state", "main"]) byId(id).hidden = true;
  byId("entry").hidden = false;
  byId("refreshed").textContent = "Waiting for a token.";
}

function forget() { sessionStorage.removeItem("token"); clearTimeout(timer); refresh(); }

async function refresh() {
  timer = null;
  let refused = false;
  try {
    const answer = await ask("/api/status"), key = turned.at(-1);
    const paged = key === undefined ? null : await ask(`/api/status/tables?limit=${TABLES_SHOWN}&after=${encodeURIComponent(key)}`);
    refused = answer.status === 401;
    if (refused) return askForToken(sessionStorage.getItem("token") ? `It was not let in: ${(await answer.json()).message}.` : "“ingester tokens add” makes one; it is kept in this tab alone.");
    const bad = [answer, paged].find((each) => each && !each.ok);
    if (bad) return lose("The daemon answers with an error", `HTTP ${bad.status}; its log says more`);
    const status = await answer.json(), page = paged && await paged.json();
    if (turned.at(-1) === key) show(status, page);
    lastGood = new Date();
    byId("lost").hidden = byId("entry").hidden = true; byId("state").hidden = false; byId("main").className = "";
    byId("refreshed").textContent = `Refreshed ${clock(lastGood)}, every ${REFRESH_MS / 1000} s.`;
    put("leave", ...(sessionStorage.getItem("token") ? [button("Forget the token", forget)] : []));
  } catch (error) {
    lose("The daemon cannot be reached", error.name === "TimeoutError" ? `No answer within ${PATIENCE_MS / 1000} s` : `No connection (${error.message})`);
  } finally {
    if (!document.hidden && !refused) timer = setTimeout(refresh, REFRESH_MS);
  }
}

// Hidden: stop asking. Shown again: ask at once.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { clearTimeout(timer); timer = null; byId("refreshed").textContent = "Paused."; }
  else if (timer === null) refresh();
});
refresh();
