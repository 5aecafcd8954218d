// Pushes: the status that their controllers last published.
import { clock, seconds, whole } from "./numbers.js";
import { badge, byId, el, none, put, rowsOf, scrolling } from "./elements.js";

const PUSHES_SHOWN = 5;
const WAY = ["STARTED", "WRITING", "COMPLETED", "WAITING", "SERVING"];
const TONES = { WAITING: "warn", SERVING: "good", ROLLED_BACK: "bad", ABORTED: "bad", FAILED: "bad" };

function tone(status) { return TONES[status] || "calm"; }
function statusBadge(status) { return badge(status, tone(status)); }
// The progress of a region; empty for one that was aborted.
function way(status) {
  const at = WAY.indexOf(status);
  return el("span", { class: `way ${tone(status)}`, "aria-hidden": "true" }, ...WAY.map((_, i) => el("i", i <= at ? { class: "done" } : {})));
}
function waitsOf(x) {
  const said = [];
  if (x.unreachable_since) said.push(`unreachable since ${clock(x.unreachable_since)}`);
  if (x.lagging && x.lagging.length) said.push(`followers: ${x.lagging.join(", ")}`);
  const step = x.step;
  if (step) {
    const hooks = step.waits.map((w) => (w.reason ? `${w.hook}: ${w.reason}` : w.hook));
    const next = step.next_at ? `called again at ${clock(step.next_at)}` : "being called";
    said.push(`${step.method} ${hooks.length ? `waits (${hooks.join("; ")}), ` : ""}${next}`);
  }
  return said.join("; ");
}
function versions(r) { return r.table_version === null ? "–" : `v${r.table_version}${r.previous === null ? "" : ` (previous: v${r.previous})`}`; }
function titleOf(p) { return `${p.namespace}.${p.table}: push ${p.push_id}`; }
function endOf(p) { return p.ending ? `${p.ending.kind}: ${p.ending.reason}` : ""; }

function fullPush(p) {
  const waits = waitsOf(p), order = p.target ? `${p.order}, target ${p.target}` : p.order;
  const told = `order ${order}; record in region ${p.kept_in.region} (${p.kept_in.url}); controller ${p.leader.controller}`;
  const regions = rowsOf([
    ["Region", "", (r) => r.name], ["Status", "", (r) => el("span", {}, way(r.status), statusBadge(r.status))], ["Since", "", (r) => clock(r.since)],
    ["Version", "", versions], ["Waiting for", "text", (r) => [waitsOf(r), r.reason].filter(Boolean).join("; ") || "–"]], p.regions);
  const events = [...p.events].reverse().map((e) => el("li", {}, el("time", {}, clock(e.at)), e.region === null ? "" : `${e.region}: `, e.what));
  return el("div", { class: "push" }, el("h3", {}, titleOf(p), " ", statusBadge(p.status)),
    el("p", { class: "quiet" }, `Since ${clock(p.since)}; began ${clock(p.began_at)}${p.ended_at ? `, ended ${clock(p.ended_at)}` : ""}`),
    p.led || p.ended_at ? null : el("p", { class: "caution" }, el("strong", {}, `No controller: last status ${seconds(p.told_s)} ago.`), " A running controller takes it over."),
    p.ending ? el("p", {}, el("strong", {}, p.ending.kind), `: ${p.ending.reason}`) : null, waits ? el("p", {}, waits) : null,
    scrolling(`Regions of push ${p.push_id}`, regions),
    el("div", { class: "events", role: "group", "aria-label": `Events of push ${p.push_id}`, tabindex: "0" }, el("ul", {}, ...events)),
    el("p", { class: "quiet" }, told));
}

export function showPushes(s) {
  const pushes = s.pushes || [], how = s.push_reading || { unreadable: [], left_out: 0, failure: null };
  byId("pushes-card").hidden = !pushes.length && !how.unreadable.length && how.failure === null;
  // Active pushes come first; without any, the one that ended last is shown in full.
  const full = Math.min(PUSHES_SHOWN, Math.max(1, pushes.filter((p) => !p.ended_at).length));
  const rest = pushes.slice(full), parts = pushes.slice(0, full).map(fullPush);
  if (rest.length) {
    const table = rowsOf([["Push", "", titleOf], ["Status", "", (p) => statusBadge(p.status)], ["Regions", "", (p) => p.regions.map((r) => r.name).join(", ")],
      ["Began", "", (p) => clock(p.began_at)], ["Ended", "", (p) => (p.ended_at ? clock(p.ended_at) : p.led ? "–" : "no controller")], ["Why", "text", (p) => endOf(p) || "–"]], rest);
    parts.push(el("div", { class: "push" }, scrolling("Other pushes", table)));
  }
  if (how.failure !== null) parts.push(el("p", { class: "caution" }, `Not updated since ${how.read_at ? clock(how.read_at) : "the start"}: ${how.failure}`));
  for (const bad of how.unreadable) parts.push(el("p", { class: "caution" }, `${bad.path} cannot be shown: ${bad.reason}`));
  if (how.left_out) parts.push(none(`${whole(how.left_out)} older pushes are not shown.`));
  put("pushes", ...parts);
}
