// Plots of the last minutes. The daemon keeps the values, so they are complete at once.
//
// Each has a text alternative: title, current, lowest and highest value. Unknown values and the time
// for which the event loop was blocked are gaps.
import { known, seconds } from "./numbers.js";
import { el, svg } from "./elements.js";

const WIDTH = 300, HEIGHT = 44;

// Seconds of each moment since the first one.
function moments(history) {
  const at = history.at.map((each) => Date.parse(each) / 1000);
  return at.map((each) => each - at[0]);
}
function place(values, top, at, step) {
  const scale = WIDTH / (at.at(-1) || 1);
  return values.flatMap((v, i) => {
    const stood = i && at[i] - at[i - 1] > 2.5 * step ? [null] : [];
    return [...stood, known(v) ? `${(at[i] * scale).toFixed(1)} ${(HEIGHT - 1 - (HEIGHT - 4) * Math.min(1, Math.max(0, v / top))).toFixed(1)}` : null];
  });
}
// Runs of known values, one after another.
function runs(places) {
  const found = [[]];
  for (const each of places) if (each === null) found.push([]); else found.at(-1).push(each);
  return found.filter((run) => run.length);
}
// A single value is a dot: a line of no length with round ends.
function edge(run) { return `M${run.join("L")}${run.length === 1 ? "h.01" : ""}`; }
function area(run) { return `M${run[0].split(" ")[0]} ${HEIGHT}L${run.join("L")}L${run.at(-1).split(" ")[0]} ${HEIGHT}Z`; }
function bounds(lines) {
  const all = lines.flatMap((line) => line.values).filter(known);
  return all.length ? [Math.min(...all), Math.max(...all)] : [null, null];
}

// lines: {name, values}, at most two; limit: a horizontal line.
export function plot(title, lines, unit, history, limit = null) {
  const [low, high] = bounds(lines);
  if (high === null) return el("p", { class: "note" }, "No data yet.");
  const top = Math.max(high * 1.05, known(limit) && limit < high * 4 ? limit * 1.02 : 0, 1e-12);
  const at = moments(history), span = seconds(at.at(-1) + history.step_s);
  const told = lines.map(({ name, values }) => `${name ? name + " " : ""}now ${unit(values.at(-1))}`).join(", ");
  const label = `${title}, last ${span}: ${told}; lowest ${unit(low)}, highest ${unit(high)}`;
  const lined = lines.map((line) => runs(place(line.values, top, at, history.step_s)));
  const drawn = [svg("path", { class: "area", d: lined[0].map(area).join("") }),
    ...lined.map((each, i) => svg("path", { class: i ? "edge second" : "edge", d: each.map(edge).join("") }))];
  if (known(limit) && limit <= top) {
    const y = (HEIGHT - 1 - (HEIGHT - 4) * limit / top).toFixed(1);
    drawn.push(svg("path", { class: "limit", d: `M0 ${y}L${WIDTH} ${y}` }));
  }
  return el("figure", { class: "plot" },
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("title", {}, label), ...drawn),
    el("figcaption", { class: "note", "aria-hidden": "true" }, el("span", {}, `−${span}`), el("span", {}, `max ${unit(high)}`), el("span", {}, "now")));
}
