// The page's script on a status, without a browser: node page_in_node.js PAGE [BUTTON …] < STATUS
// presses these buttons, one after another (a page of tables is what STATUS has as "page"), and
// prints the text of each part of the page as JSON. The elements are as few as the page needs.
"use strict";
const fs = require("fs");
const script = fs.readFileSync(process.argv[2], "utf8").match(/<script>([\s\S]*)<\/script>/)[1];
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
const asked = [];
global.fetch = async (path) => {
  asked.push(path);
  return { ok: true, json: async () => (path === "/api/status" ? status : status.page) };
};
const settled = () => new Promise((done) => setImmediate(() => setImmediate(done)));
const buttons = (node) => (node.act ? [node] : (node.children || []).flatMap(buttons));
eval(script);
(async () => {
  await settled();
  for (const label of process.argv.slice(3)) {
    Object.values(parts).flatMap(buttons).find((each) => text(each) === label).act();
    await settled();
  }
  const shown = Object.entries(parts).map(([id, part]) => [id, text(part)]);
  console.log(JSON.stringify({ ...Object.fromEntries(shown), asked: asked.join(" ") }));
})();
