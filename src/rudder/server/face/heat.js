// An answer as tokens, coloured by a number of each: what a probe reads there. The row of a token is
// there once the model has read the token, a step after it was sampled: colours follow the text, and
// the last token has none.
import {element} from "./markdown.js";

export class TokenView {
  constructor(parent) {
    this.pieces = [];  // {first, count, node}: tokens of the answer that a piece of text came from
    this.text = element("div", {class: "tokens"});
    this.name = element("span");
    this.low = element("span");
    this.high = element("span");
    this.legend = element("div", {class: "legend"}, this.name, this.low, element("i", {"aria-hidden": "true"}), this.high);
    this.legend.hidden = true;
    parent.append(this.text, this.legend);
  }

  add(text, first, count) {
    const node = element("span", {}, text);
    this.pieces.push({first, count, node});
    this.text.append(node);
  }

  // The mean over the piece's tokens; a detokenizer may hold several back and give them at once.
  reading({first, count}, values) {
    let sum = 0;
    let seen = 0;
    for (let i = first; i < first + count; ++i) {
      if (!values.has(i)) continue;
      sum += values.get(i);
      ++seen;
    }
    return seen ? sum / seen : null;
  }

  // By `values`, a number by index of the token; `name` says what they are.
  colour(name, values) {
    let scale = 0;
    for (const number of values.values()) scale = Math.max(scale, Math.abs(number));
    this.legend.hidden = !scale;
    for (const piece of this.pieces) {
      const number = scale ? this.reading(piece, values) : null;
      const share = Math.round((Math.abs(number ?? 0) / (scale || 1)) * 55);  // per cent: the text stays legible
      piece.node.style.backgroundColor =
          share ? `color-mix(in srgb, var(${number < 0 ? "--cold" : "--warm"}) ${share}%, transparent)` : "";
      piece.node.title = number === null ? "" : number.toFixed(3);
    }
    this.name.textContent = name;
    this.low.textContent = (-scale).toFixed(2).replace("-", "−");
    this.high.textContent = `+${scale.toFixed(2)}`;
  }
}

export class HeatView extends TokenView {
  // `probed`: {name, point, measure} of the probe.
  constructor(parent, probed) {
    super(parent);
    this.probed = probed;
    this.values = new Map();  // index of the token -> number
  }

  take(capture, prompt) {
    const reading = capture.values?.probes?.[this.probed.name]?.[this.probed.point];
    if (reading !== undefined) this.values.set(capture.position - prompt, reading);
  }

  update() {
    this.colour(`${this.probed.measure} to ${this.probed.name} at ${this.probed.point}`, this.values);
  }
}
