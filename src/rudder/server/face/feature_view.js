// An answer as tokens, with the largest features of the token under the pointer, and coloured by one
// feature. The rows come with the answer's events; the server encodes them when they are there.
import {call} from "./api.js";
import {colouring, pin} from "./features.js";
import {TokenView} from "./heat.js";
import {element} from "./markdown.js";

const TOP = 8;
const ROWS_AT_ONCE = 64;

function joined(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

export class FeatureView extends TokenView {
  // `read`: {dictionary, layer} of what reads the tokens.
  constructor(parent, read) {
    super(parent);
    this.read = read;
    this.rows = new Map();  // index of the token -> bytes of its row, f32
    this.top = new Map();  // index -> [[feature, value], …], the largest first
    this.values = new Map();  // index -> value of the feature `coloured`
    this.coloured = null;
    this.encoding = false;
    this.told = element("div", {class: "told", role: "status"}, element("span", {class: "quiet"}, "Point at a token."));
    parent.append(this.told);
  }

  take(capture, prompt) {
    const pack = Object.values(capture.values?.rows ?? {})[0];
    if (pack) this.rows.set(capture.position - prompt, Uint8Array.from(atob(pack.data), (each) => each.charCodeAt(0)));
  }

  tell(piece) {
    const top = this.top.get(piece.first);
    if (!top) return;
    this.told.replaceChildren(element("span", {class: "quiet"}, JSON.stringify(piece.node.textContent)));
    for (const [feature, value] of top) {
      const button = element("button", {type: "button", title: "Pin as a slider"}, `${feature}: ${value.toPrecision(3)}`);
      button.addEventListener("click", () => pin(this.read, feature, this.largest(feature)));
      this.told.append(button);
    }
  }

  // The largest value that was seen of a feature.
  largest(feature) {
    let most = 0;
    for (const top of this.top.values()) {
      for (const [each, value] of top) if (each === feature) most = Math.max(most, value);
    }
    return most;
  }

  // What the server makes of the rows of these tokens.
  async encode(indices, wanted) {
    const rows = indices.map((index) => this.rows.get(index));
    const {dictionary, layer} = this.read;
    const packed = {dtype: "float32", shape: [rows.length, rows[0].length / 4], data: toBase64(joined(rows))};
    const body = {dictionary, layer, rows: packed, ...wanted};
    return (await (await call("v1/steering/features/encode", {body, quiet: true})).json()).rows;
  }

  missing(known) {
    return [...this.rows.keys()].filter((index) => !known.has(index)).slice(0, ROWS_AT_ONCE);
  }

  // Encodes what has not been, until all is.
  async encodeMissing() {
    if (this.encoding) return;
    this.encoding = true;
    try {
      for (;;) {
        const feature = colouring();
        if (feature !== this.coloured) this.values.clear();
        this.coloured = feature;
        const unread = this.missing(this.top);
        const uncoloured = feature === null ? [] : this.missing(this.values);
        if (!unread.length && !uncoloured.length) break;
        if (unread.length) {
          const rows = await this.encode(unread, {top: TOP});
          unread.forEach((index, i) => this.top.set(index, rows[i].features.map((each, k) => [each, rows[i].values[k]])));
        }
        if (uncoloured.length) {
          const rows = await this.encode(uncoloured, {features: [feature]});
          if (feature === colouring()) uncoloured.forEach((index, i) => this.values.set(index, rows[i].values[0]));
        }
        this.paint();
      }
    } catch (error) {
      this.told.replaceChildren(element("span", {class: "error"}, error.message));
    }
    this.encoding = false;
    this.paint();
  }

  paint() {
    const feature = this.coloured;
    this.colour(feature === null ? "" : `feature ${feature} of ${this.read.dictionary}`, this.values);
  }

  update() {
    this.encodeMissing();
  }
}
