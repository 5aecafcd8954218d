// Numbers with units, times, and escaped text. Pure.
"use strict";

export function digits(x) { return x >= 100 || Number.isInteger(x) ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2); }
export function scaled(x, step, units) {
  let i = 0;
  while (x >= step * 0.9995 && i < units.length - 1) { x /= step; i++; }
  return digits(x) + units[i];
}
export function known(x) { return typeof x === "number" && Number.isFinite(x); }
export function count(x) { return known(x) ? scaled(x, 1000, ["", " k", " M", " G", " T"]) : "–"; }
export function bytes(x) { return known(x) ? scaled(x, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]) : "–"; }
export function whole(x) { return known(x) ? x.toLocaleString("en-US") : "–"; }
export function many(x, one, more = `${one}s`) { return known(x) ? `${whole(x)} ${x === 1 ? one : more}` : "–"; }
export function seconds(x) {
  if (!known(x)) return "–";
  if (x < 0) return `−${seconds(-x)}`;
  if (x < 0.001) return digits(x * 1e6) + " µs";
  if (x < 1) return digits(x * 1e3) + " ms";
  if (x < 120) return digits(x) + " s";
  const [minutes, hours] = [Math.floor(x / 60), Math.floor(x / 3600)];
  if (x < 600) return `${minutes} min ${Math.floor(x % 60)} s`;
  if (x < 7200) return `${minutes} min`;
  if (x < 172800) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(x / 86400)} days`;
}
// UTC, as in the log.
export function clock(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? String(iso) : at.toISOString().slice(0, 19).replace("T", " ") + " Z";
}

// Control, direction and invisible characters are escaped, as in shown_text.py.
export const HIDDEN = /[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]/g;
export function harmless(x) { return String(x).replace(HIDDEN, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`); }
// The time without the date.
export function hour(iso) { return clock(iso).slice(11); }
export function share(part, whole) { return known(part) && whole > 0 ? Math.min(100, 100 * part / whole) : 0; }
