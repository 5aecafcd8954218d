// Tables: those with the most in memory, or all by name, with search and pages; and one table with
// its partitions and files.
//
//   (no hash)                                   the list
//   #/tables/NAMESPACE/TABLE                    the table, its partitions
//   #/tables/NAMESPACE/TABLE/files?partition=K  its files: of one partition, or all without K
//
// The address contains the view, so that history, bookmarks and a second window work.
import { bytes, clock, known, many, seconds, whole } from "./numbers.js";
import { button, byId, el, facts, grid, none, put, total } from "./elements.js";

const NUMBER = "number";
const view = { order: "busy", match: "", rows: 10, keys: [""], open: null };

export function route(hash) {
  const found = /^#\/tables\/([^/?]+)\/([^/?]+)(?:\/(files))?(?:\?partition=(.*))?$/.exec(hash);
  const read = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
  const next = found && { namespace: read(found[1]), table: read(found[2]), list: found[3] || "partitions", partition: found[4] === undefined ? null : read(found[4]) };
  if (JSON.stringify(next) === JSON.stringify(view.open)) return false;
  [view.open, view.keys, view.match, byId("find").value] = [next, [""], "", ""];
  return true;
}
export function isOpen() { return view.open !== null; }
export function turnTo(change) { Object.assign(view, { keys: [""] }, change); }
export function turnPage(forward) {
  const box = byId("turning");
  if (forward && box.next !== undefined && box.next !== null) view.keys = [...view.keys, box.next];
  else if (!forward && view.keys.length > 1) view.keys = view.keys.slice(0, -1);
  else return false;
  return true;
}

function addressOf(t, more = "") { return `#/tables/${encodeURIComponent(t.namespace)}/${encodeURIComponent(t.table)}${more}`; }
function wantsPage() { return view.open !== null || view.order === "name" || view.match !== ""; }
// What is requested besides the status.
export function paths() {
  if (!wantsPage()) return [];
  const o = view.open, asked = new URLSearchParams({ limit: view.rows, after: view.keys.at(-1) });
  if (view.match) asked.set("match", view.match);
  if (o === null) return [`/api/status/tables?${asked}`];
  if (o.partition !== null) asked.set("partition", o.partition);
  const base = `/api/tables/${encodeURIComponent(o.namespace)}/${encodeURIComponent(o.table)}`;
  return [base, `${base}/${o.list}?${asked}`];
}

const COLUMNS = [
  ["Table", "", (t) => el("a", { href: addressOf(t) }, `${t.namespace}.${t.table}`)],
  ["Buffered rows", NUMBER, (t) => whole(t.buffered.rows)], ["Memory", NUMBER, (t) => bytes(t.buffered.bytes)],
  ["Partitions", NUMBER, (t) => whole(t.buffered.partitions)], ["Oldest", NUMBER, (t) => seconds(t.oldest_buffered_s)],
  ["Persisted rows", NUMBER, (t) => whole(t.persisted.rows)], ["Size", NUMBER, (t) => bytes(t.persisted.bytes)],
  ["Files", NUMBER, (t) => whole(t.persisted.files)], ["Checkpoints", NUMBER, (t) => whole(t.checkpoints && t.checkpoints.count)],
  ["Version", NUMBER, (t) => whole(t.manifest_version)],
];
const PARTITIONS = [
  ["Partition", "", (p) => el("a", { href: addressOf(view.open, `/files?partition=${encodeURIComponent(p.key)}`) }, p.folder || "all rows")],
  ["Buffered rows", NUMBER, (p) => whole(p.buffered.rows)], ["Memory", NUMBER, (p) => bytes(p.buffered.bytes)], ["Frozen", NUMBER, (p) => whole(p.buffered.frozen)],
  ["Oldest", NUMBER, (p) => seconds(p.buffered.oldest_s)], ["Persisted rows", NUMBER, (p) => whole(p.persisted.rows)],
  ["Size", NUMBER, (p) => bytes(p.persisted.bytes)], ["Files", NUMBER, (p) => whole(p.persisted.files)],
];
const FILES = [
  ["File", "path", (f) => f.path], ["Rows", NUMBER, (f) => whole(f.rows)], ["Size", NUMBER, (f) => bytes(f.bytes)], ["Committed", "", (f) => clock(f.at)],
  ["Made by", "", (f) => f.kind], ["Writer", "", (f) => `${f.writer}, epoch ${f.epoch}`], ["Sequences", NUMBER, (f) => `${whole(f.first_seq)} – ${whole(f.last_seq)}`],
];

// The line below a list: the position, and buttons for the neighbouring pages.
function turning(what, shown, all, next) {
  const first = (view.keys.length - 1) * view.rows + 1, box = byId("turning");
  box.next = next;
  put("turning", el("span", { role: "status" }, shown ? `${whole(first)} to ${whole(first + shown - 1)} of ${many(all, what)}` : ""),
    view.keys.length > 1 ? button("Previous page", "before", "", { "aria-keyshortcuts": "b" }) : null,
    next === null ? null : button("Next page", "next", "", { "aria-keyshortcuts": "n" }));
}

export function showTables(s, answers) {
  byId("order").disabled = view.open !== null;
  const refused = answers.find((each) => !each.ok);
  if (refused) {
    put("tables", ...(view.open ? [trail(view.open)] : []), el("p", { class: "caution", role: "status" }, refused.told));
    return turning("", 0, 0, null);
  }
  if (view.open !== null) return showOne(...answers.map((each) => each.body));
  if (wantsPage()) return showList(answers[0].body.items, answers[0].body.total, answers[0].body.next);
  const busiest = [...s.tables].sort((a, b) => b.buffered.bytes - a.buffered.bytes), at = (view.keys.length - 1) * view.rows;
  const rows = busiest.slice(at, at + view.rows), all = total(s, "tables");
  showList(rows, all, at + view.rows < busiest.length ? String(at + view.rows) : null);
  if (all > busiest.length && at + view.rows >= busiest.length) byId("turning").append(el("span", {}, ` ${whole(all - busiest.length)} more, with less in memory, are listed by name.`));
}

function showList(rows, all, next) {
  if (!rows.length) put("tables", none(view.match ? "No table matches." : "No tables yet: the first write creates one."));
  else put("tables", grid("Tables", COLUMNS, rows, (t) => `${t.namespace}/${t.table}`));
  turning("table", rows.length, all, next);
}

function trail(o) {
  const name = `${o.namespace}.${o.table}`, path = [el("a", { href: "#tables-card" }, "All tables"), " / "];
  path.push(o.partition === null ? name : el("a", { href: addressOf(o) }, name));
  return el("nav", { "aria-label": "Breadcrumb" }, el("h3", { class: "trail" }, ...path));
}

// How far a table is published in a format.
function published(p) {
  if (p.refused !== null) return el("span", { class: "caution" }, p.refused);
  const at = p.number === null ? "nothing yet" : `version ${whole(p.number)}`, behind = p.versions_behind ? `; ${many(p.versions_behind, "version")} behind, ${seconds(p.seconds_behind)}` : "";
  return el("span", {}, `${at}${behind}${p.error === null ? "" : `; ${p.error}`} `, el("code", {}, p.location || ""));
}

function showOne(t, page) {
  const o = view.open, here = (list) => (o.list === list ? { "aria-current": "page" } : {});
  const columns = el("details", {}, el("summary", {}, many(t.columns.length, "column")),
    el("ul", { class: "columns" }, ...t.columns.map((c) => el("li", {}, el("code", {}, c.name), ` ${c.type}${c.nullable ? "" : ", never null"}`))));
  const about = facts([["Version", `${whole(t.manifest_version)}${t.table_version === 1 ? "" : ` of v${t.table_version}`}; last checked ${seconds(t.seen_s)} ago`],
    ["In memory", `${many(t.buffered.rows, "row")}, ${bytes(t.buffered.bytes)}`], ["In files", `${many(t.persisted.rows, "row")}, ${many(t.persisted.files, "file")}, ${bytes(t.persisted.bytes)}`],
    ["Partitioned by", t.partition_by.join(", ") || "nothing"], ["Primary key", t.primary_key.join(", ") || "none"], ["Sorted by", t.sort_by.join(", ") || "nothing"],
    ...(t.primary_key.length ? [["Owner", t.owner || "none yet"]] : []), ...(t.max_age_s ? [["Flushed after", seconds(t.max_age_s)]] : []),
    ...(t.published || []).map((p) => [`Published as ${p.format}`, published(p)]), ["Schema", columns]]);
  const lists = el("p", { class: "lists" }, el("a", { href: addressOf(o), ...here("partitions") }, many(t.partitions, "partition")), " ",
    el("a", { href: addressOf(o, "/files"), ...(o.partition === null ? here("files") : {}) }, many(t.persisted.files, "file")),
    o.partition === null ? null : el("span", {}, ` Files of ${o.partition.split(" ")[0] || "the table"}`));
  const isFiles = o.list === "files", label = `${isFiles ? "Files" : "Partitions"} of ${o.namespace}.${o.table}`;
  const empty = view.match ? "No match." : isFiles ? "No files yet: all rows are in memory." : "No rows.";
  const list = page.items.length ? grid(label, isFiles ? FILES : PARTITIONS, page.items, (each) => each.key || each.path) : none(empty);
  put("tables", trail(o), el("div", { class: "about" }, about), lists, list);
  turning(isFiles ? "file" : "partition", page.items.length, page.total, page.next);
}
