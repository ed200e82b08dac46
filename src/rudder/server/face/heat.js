// An answer as tokens, coloured by a number of each: what a probe reads there. The row of a token is
// there once the model has read the token, a step after it was sampled: colours follow the text, and
// the last token has none. What is known of a token is told where the pointer or the focus is: the
// tokens of an answer are one tab stop, and arrow keys, Home and End go from one to another.
import {element} from "./markdown.js";

export class TokenView {
  constructor(parent) {
    this.pieces = [];  // {first, count, node}: tokens of the answer that a piece of text came from
    this.text = element("div", {class: "tokens", role: "group",
                                "aria-label": "Tokens of the answer; arrow keys go from one to the next"});
    for (const kind of ["pointerover", "click", "focusin"]) {
      this.text.addEventListener(kind, ({target}) => {
        const piece = this.pieces.find(({node}) => node === target);
        if (piece) this.tell(piece);
      });
    }
    this.text.addEventListener("keydown", (event) => this.step(event));
    this.name = element("span");
    this.low = element("span");
    this.high = element("span");
    this.legend = element("div", {class: "legend"}, this.name, this.low, element("i", {"aria-hidden": "true"}), this.high);
    this.legend.hidden = true;
    parent.append(this.text, this.legend);
  }

  add(text, first, count) {
    const node = element("span", {tabindex: this.pieces.length ? "-1" : "0"}, text);
    this.pieces.push({first, count, node});
    this.text.append(node);
  }

  // Shows what is known of a piece.
  tell() {}

  // The token that has the focus is the tab stop from then on.
  step(event) {
    const at = this.pieces.findIndex(({node}) => node === event.target);
    const last = this.pieces.length - 1;
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last}[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const next = this.pieces[Math.min(Math.max(to, 0), last)].node;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
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
    this.note = element("p", {class: "quiet", role: "status"}, "Point at a token.");
    parent.append(this.note);
  }

  tell(piece) {
    const number = this.reading(piece, this.values);
    this.note.textContent = `${JSON.stringify(piece.node.textContent)}: ${number === null ? "not read" : number.toFixed(3)}`;
  }

  take(capture, prompt) {
    const reading = capture.values?.probes?.[this.probed.name]?.[this.probed.point];
    if (reading !== undefined) this.values.set(capture.position - prompt, reading);
  }

  update() {
    this.colour(`${this.probed.measure} to ${this.probed.name} at ${this.probed.point}`, this.values);
  }
}
