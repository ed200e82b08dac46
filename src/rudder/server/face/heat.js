// An answer as tokens, coloured by what a probe reads at each. The row of a token is there once the
// model has read the token, a step after it was sampled: colours follow the text, and the last token
// has none.
import {element} from "./markdown.js";

export class HeatView {
  // `probed`: {name, point, measure} of the probe.
  constructor(parent, probed) {
    this.probed = probed;
    this.pieces = [];  // {first, count, node}: tokens of the answer that a piece of text came from
    this.values = new Map();  // index of the token -> number
    this.text = element("div", {class: "tokens"});
    this.low = element("span");
    this.high = element("span");
    this.legend = element("div", {class: "legend"}, element("span", {}, `${probed.measure} to ${probed.name} at ${probed.point}`),
                          this.low, element("i", {"aria-hidden": "true"}), this.high);
    this.legend.hidden = true;
    parent.append(this.text, this.legend);
  }

  add(text, first, count) {
    const node = element("span", {}, text);
    this.pieces.push({first, count, node});
    this.text.append(node);
  }

  value(index, number) {
    this.values.set(index, number);
  }

  // The mean over the piece's tokens; a detokenizer may hold several back and give them at once.
  reading({first, count}) {
    let sum = 0;
    let seen = 0;
    for (let i = first; i < first + count; ++i) {
      if (!this.values.has(i)) continue;
      sum += this.values.get(i);
      ++seen;
    }
    return seen ? sum / seen : null;
  }

  update() {
    let scale = 0;
    for (const number of this.values.values()) scale = Math.max(scale, Math.abs(number));
    if (!scale) return;
    for (const piece of this.pieces) {
      const number = this.reading(piece);
      if (number === null) continue;
      const share = Math.round((Math.abs(number) / scale) * 55);  // per cent: the text stays legible
      piece.node.style.backgroundColor =
          `color-mix(in srgb, var(${number < 0 ? "--cold" : "--warm"}) ${share}%, transparent)`;
      piece.node.title = number.toFixed(3);
    }
    this.low.textContent = (-scale).toFixed(2).replace("-", "−");
    this.high.textContent = `+${scale.toFixed(2)}`;
    this.legend.hidden = false;
  }
}
