// The page's script on a status, without a browser: node page_in_node.js PAGE [BUTTON …] < STATUS
// presses these buttons, one after another (a page of tables is what STATUS has as "page"), and
// prints the text of each part of the page as JSON. "type:TEXT" types into every field. A daemon
// with STATUS.token asks for it. The elements are as few as the page needs.
"use strict";
const fs = require("fs");
const script = fs.readFileSync(process.argv[2], "utf8").match(/<script type="module">([\s\S]*)<\/script>/)[1];
const status = JSON.parse(fs.readFileSync(0, "utf8"));

class Element {
  constructor() { this.children = []; this.style = {}; this.hidden = false; this.className = ""; }
  setAttribute() {}
  addEventListener(_, act) { this.act = act; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  querySelector() { return null; }
  querySelectorAll() { return []; }
  get childNodes() { return this.children; }
  get innerHTML() { return text(this); }
  set textContent(value) { this.children = [String(value)]; }
}
const text = (node) => (node instanceof Element ? node.children.map(text).join(" ") : node);
const parts = {};
global.Node = Element;
global.document = {
  hidden: true,
  getElementById: (id) => (parts[id] ||= new Element()),
  createElement: () => new Element(),
  createElementNS: () => new Element(),
  addEventListener() {},
};
const asked = [], kept = {};
global.sessionStorage = {
  getItem: (name) => kept[name] ?? null,
  setItem(name, value) { kept[name] = value; },
  removeItem(name) { delete kept[name]; },
};
global.fetch = async (path, { headers }) => {
  asked.push(path);
  if (status.token && headers.Authorization !== `Bearer ${status.token}`)
    return { ok: false, status: 401, json: async () => ({ code: "unauthenticated", message: "the token is not known here" }) };
  return { ok: true, json: async () => (path === "/api/status" ? status : status.page) };
};
const settled = () => new Promise((done) => setImmediate(() => setImmediate(done)));
const buttons = (node) => (node.act ? [node] : (node.children || []).flatMap(buttons));
eval(script);
(async () => {
  await settled();
  for (const label of process.argv.slice(3)) {
    if (label.startsWith("type:")) {
      Object.values(parts).flatMap(buttons).forEach((each) => { each.value = label.slice(5); });
      continue;
    }
    Object.values(parts).flatMap(buttons).find((each) => text(each) === label).act();
    await settled();
  }
  const shown = Object.entries(parts).map(([id, part]) => [id, text(part)]);
  console.log(JSON.stringify({ ...Object.fromEntries(shown), asked: asked.join(" "), kept: JSON.stringify(kept) }));
})();
