// An answer as tokens, with what a head of attention reads at the token under the pointer: its weights of
// the answer's tokens up to there, as colours, and how much of them the prompt has. Shown where the
// server captures.
import {TokenView} from "./heat.js";
import {element} from "./markdown.js";

const panel = document.getElementById("patterns");
const layer = document.getElementById("pattern-layer");
const head = document.getElementById("pattern-head");
let longest = 0;  // tokens of a sequence

export function loadPatterns(settings, model) {
  panel.hidden = settings["capture-memory-mb"] === "0";
  longest = model.max_model_len;
}

// What the answer's tokens are read by; null where no layer is given.
export function patternCapture() {
  if (panel.hidden || layer.value === "") return null;
  const patterns = {layers: Number(layer.value), heads: Number(head.value), keys: longest};
  return {response: {patterns, positions: "all_generated", dtype: "float32"}};
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

export class PatternView extends TokenView {
  constructor(parent) {
    super(parent);
    this.read = new Map();  // index of the token -> weights, by position
    this.prompt = 0;        // its tokens
    this.words = `head ${Number(head.value)} of layer ${Number(layer.value)}`;
    this.note = element("p", {class: "quiet", role: "status"}, "Point at a token.");
    parent.append(this.note);
  }

  take(capture, prompt) {
    const [told] = Object.values(capture.values?.patterns ?? {});
    if (!told) return;
    this.prompt = prompt;
    const bytes = Uint8Array.from(atob(told.data), (letter) => letter.charCodeAt(0));
    this.read.set(capture.position - prompt, new Float32Array(bytes.buffer));
  }

  tell(piece) {
    const weights = this.read.get(piece.first + piece.count - 1);
    if (!weights) return;
    const share = weights.subarray(0, this.prompt).reduce((sum, weight) => sum + weight, 0);
    const own = [...weights.subarray(this.prompt)].map((weight, i) => [i, weight]);
    this.colour(`weights of ${this.words}`, new Map(own));
    this.note.textContent = `${JSON.stringify(piece.node.textContent)} reads the prompt with ${percent(share)}, itself with ${percent(own.at(-1)[1])}`;
  }

  update() {}
}
