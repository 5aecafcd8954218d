// Elements: built from text only, and morphed into the page.
//
// Each answer builds the page's parts again. `morph` changes only what differs, so that focus,
// selection and scroll position stay, and screen readers announce only changes. An element with
// data-act is handled by one listener; data-arg is its argument.
import { harmless, whole } from "./numbers.js";

const SVG = "http://www.w3.org/2000/svg";
export function byId(id) { return document.getElementById(id); }
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children.filter((child) => child !== null).map((c) => c instanceof Node ? c : harmless(c)));
  return node;
}
export function el(tag, attributes = {}, ...children) { return fill(document.createElement(tag), attributes, children); }
export function svg(tag, attributes = {}, ...children) { return fill(document.createElementNS(SVG, tag), attributes, children); }
// A width or position in percent. The policy forbids style attributes.
export function styled(node, styles) { Object.assign(node.style, styles); return node; }
export function button(text, act, arg = "", more = {}) { return el("button", { type: "button", "data-act": act, "data-arg": arg, "data-key": `${act} ${arg}`, ...more }, text); }
export function badge(text, tone) { return el("span", { class: `badge ${tone}` }, text); }
export function facts(pairs) { return el("dl", {}, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])); }
export function remedy(entry) { return el("p", { class: "quiet" }, el("a", { href: `/runbook/${encodeURIComponent(entry)}`, target: "_blank", rel: "noopener" }, `What to do: ${entry}`)); }
export function none(text) { return el("p", { class: "quiet" }, text); }
// The total of a list; an older daemon's status has all of it.
export function total(s, list) { return (s.counts && s.counts[list]) || (s[list] || []).length; }
export function rest(s, list, shown) {
  const more = total(s, list) - shown;
  return more > 0 ? none(`${whole(more)} more in /api/status/${list}.`) : null;
}

// columns: [heading, kind, cell text or element]; the first column is the row's header.
export function rowsOf(columns, rows, caption = null, keyOf = null) {
  const kind = (k) => (k ? { class: k } : {});
  const head = el("tr", {}, ...columns.map(([name, k]) => el("th", { scope: "col", ...kind(k) }, name)));
  const body = rows.map((row) => el("tr", keyOf ? { "data-key": keyOf(row) } : {}, ...columns.map(([, k, text], i) => {
    const shown = text(row);
    return i === 0 ? el("th", { scope: "row", ...kind(k) }, shown) : el("td", kind(k), shown);
  })));
  return el("table", {}, caption === null ? null : el("caption", { class: "unseen" }, caption), el("thead", {}, head), el("tbody", {}, ...body));
}
// A region that may be wider than the screen: it scrolls by keyboard too, and says when it is cut.
export function scrolling(label, ...children) {
  return el("div", { class: "wide" }, el("div", { class: "scroll", role: "group", "aria-label": label, tabindex: "0" }, ...children),
    el("p", { class: "hint", "aria-hidden": "true" }, "More columns: scroll sideways →"));
}
export function grid(label, columns, rows, keyOf = null) { return scrolling(label, rowsOf(columns, rows, label, keyOf)); }

export function hintWhereCutOff() {
  for (const box of document.querySelectorAll(".wide")) {
    const inner = box.firstElementChild;
    box.classList.toggle("cut", inner.scrollWidth > inner.clientWidth + 1);
  }
}

function alike(old, next) { return old.nodeType === next.nodeType && old.nodeName === next.nodeName; }
function keyOfNode(node) { return node.dataset ? node.dataset.key : undefined; }
function morphAttributes(old, next) {
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name) && name !== "style" && name !== "open") old.removeAttribute(name);
  for (const { name, value } of [...next.attributes]) if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== next.style.cssText) old.style.cssText = next.style.cssText;
}
function morph(old, next) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  const wasCut = old.classList.contains("cut");
  morphAttributes(old, next);
  if (wasCut) old.classList.add("cut");
  morphChildren(old, [...next.childNodes]);
}
function morphChildren(parent, wanted) {
  const keyed = new Map([...parent.children].filter((c) => keyOfNode(c) !== undefined).map((c) => [keyOfNode(c), c]));
  let at = parent.firstChild;
  for (const next of wanted) {
    const key = keyOfNode(next), found = key !== undefined ? keyed.get(key) : at && keyOfNode(at) === undefined ? at : null;
    if (!found || !alike(found, next)) { parent.insertBefore(next, at); continue; }
    if (found === at) at = at.nextSibling;
    else parent.insertBefore(found, at);
    morph(found, next);
  }
  while (at) { const after = at.nextSibling; at.remove(); at = after; }
}
export function put(id, ...children) {
  const focused = document.activeElement;
  morphChildren(byId(id), children.filter((child) => child !== null).map((c) => c instanceof Node ? c : document.createTextNode(harmless(c))));
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}
