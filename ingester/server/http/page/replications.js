// Replications: the last report of each replicator.
import { bytes, clock, digits, known, many, seconds, whole } from "./numbers.js";
import { byId, el, none, put, rowsOf, scrolling, total } from "./elements.js";

const REPLICATIONS_SHOWN = 20, REPLICATED_SHOWN = 100, FOLLOWING_SHOWN = 10;
const PHASES = { set_aside: ["bad", "set aside"], copying: ["calm", "copying"], catching_up: ["calm", "catching up"], waiting: ["warn", "waiting"], left: ["calm", "dropped at the source"], following: ["good", "following"] };
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
// A table that does not follow: its reason is a sentence and needs the whole width.
function troubled(t) {
  const more = [progressOf(t), t.since ? `since ${clock(t.since)}` : "", known(t.lag_s) || known(t.lag_bytes) ? `lag ${lagOf(t)}` : ""].filter(Boolean).join("; ");
  const source = t.source === t.table ? "" : ` from ${t.source}`;
  return el("li", {}, el("p", {}, el("strong", {}, t.table), source, " ", phaseBadge(t.phase), " ", el("span", { class: "quiet" }, more)), t.reason ? el("p", {}, t.reason) : null,
    ...t.helps.map((text) => el("p", {}, el("strong", {}, "To do: "), text)), ...t.notes.map((text) => el("p", { class: "quiet" }, `Note: ${text}`)));
}

function fullReplication(r) {
  const following = r.tables.filter((t) => t.phase === "following"), others = r.tables.filter((t) => t.phase !== "following");
  const apart = others.slice(0, REPLICATED_SHOWN), well = following.slice(0, FOLLOWING_SHOWN), shown = [...apart, ...well];
  const rest = Object.entries(r.phases).map(([phase, n]) => [phase, n - shown.filter((t) => t.phase === phase).length]).filter(([, n]) => n > 0);
  const unnamed = Object.values(r.left_out).reduce((sum, n) => sum + n, 0);
  const [tone, state] = r.alive ? (r.state === "running" ? ["good", "running"] : ["warn", "retrying"]) : r.state === "ended" ? ["bad", "ended"] : ["bad", "no reports"];
  const warn = (strong, text) => el("p", { class: "caution" }, el("strong", {}, strong), text);
  const heard = `${clock(r.heard_at)} (${seconds(r.heard_s)} ago)`;
  const n = "number", where = `${r.namespace} from ${r.source}`, region = (label, more) => ({ role: "group", "aria-label": `${label} of ${where}`, tabindex: "0", ...more });
  const table = rowsOf([
    ["Table", "", (t) => t.table], ["Source", "", (t) => t.source], ["Following since", "", (t) => (t.since ? clock(t.since) : "–")],
    ["Lag", n, lagOf], ["Row changes", n, (t) => whole(t.rows)], ["Notes", "text", (t) => t.notes.join("; ") || "–"]], well);
  return el("div", { class: "push" }, el("h3", {}, `${where} `, el("span", { class: `badge ${tone}` }, state)),
    el("p", {}, `Lag ${lagOf(r)}${r.alive ? "" : " at the last report"}; ${known(r.slot_bytes) ? `the source retains ${bytes(r.slot_bytes)} of log for slot` : "slot"} ${r.slot}; last report ${heard}.`),
    r.alive ? null : r.state === "ended" ? warn(`Ended: ${r.reason || "it was stopped"}.`, " Nothing is replicated until it is started again; showing last known values.")
      : warn(`No reports since ${heard}.`, " Check whether the replicator runs. Showing last known values."),
    r.alive && r.state === "trying_again" ? warn("Retrying:", ` ${r.reason} (${many(r.retries, "failed session")})`) : null,
    r.rivals ? warn(`${r.rivals + 1} replicators report this origin.`, " Stop all but one, or give each its own --origin and --slot.") : null,
    el("p", {}, r.alive ? "" : "At the last report: ", ...Object.entries(r.phases).filter(([, n]) => n).flatMap(([phase, n]) => [phaseBadge(phase, `${whole(n)} `, r.alive || phase === "set_aside"), " "])),
    apart.length ? el("div", region("Tables that do not follow", { class: "scroll troubled" }), el("ul", {}, ...apart.map(troubled))) : null,
    well.length ? scrolling(`Tables that follow of ${where}`, table) : null,
    rest.length ? none(`Not shown: ${rest.map(([phase, n]) => `${whole(n)} ${(PHASES[phase] || ["", phase])[1]}`).join(", ")}; ${unnamed ? `all but ${whole(unnamed)} are` : "all are"} in /api/status/replications.`) : null,
    el("p", { class: "quiet" }, `Origin ${r.origin}; durable up to ${r.position || "–"} of the source's log`));
}

export function showReplications(s) {
  const all = s.replications || [];
  byId("replications-card").hidden = !all.length;
  const parts = all.slice(0, REPLICATIONS_SHOWN).map(fullReplication);
  const more = total(s, "replications") - parts.length;
  if (more > 0) parts.push(none(`${whole(more)} more in /api/status/replications.`));
  put("replications", ...parts);
}
