// An answer as tokens, with the lens at the token under the pointer or the focus: for each layer, which tokens the
// output head expects next where it reads that layer's row in place of the last one's. Shown where
// the server captures.
import {call} from "./api.js";
import {TokenView} from "./heat.js";
import {element} from "./markdown.js";

const TOP = 3;

const panel = document.getElementById("lens");
const on = document.getElementById("lens-on");
const texts = new Map();  // id of a token -> promise of its text

export function loadLens(settings) {
  panel.hidden = settings["capture-memory-mb"] === "0";
  texts.clear();
}

// What the answer's tokens are read by; null where the lens is off.
export function lensCapture() {
  return !panel.hidden && on.checked ? {response: {lens: {layers: "all", top: TOP}, positions: "all_generated"}} : null;
}

function textOf(id) {
  if (!texts.has(id)) {
    const read = call("v1/detokenize", {body: {tokens: [id]}, quiet: true}).then((response) => response.json());
    texts.set(id, read.then(({prompt}) => JSON.stringify(prompt)));
  }
  return texts.get(id);
}

export class LensView extends TokenView {
  constructor(parent) {
    super(parent);
    this.read = new Map();  // index of the token -> {point: {token_ids, logprobs}}
    this.pointed = null;    // the piece that the table is to be of
    this.note = element("p", {class: "quiet", role: "status"}, "Point at a token.");
    this.table = element("table", {class: "lens"});
    parent.append(this.note, this.table);
  }

  take(capture, prompt) {
    if (capture.values?.lens) this.read.set(capture.position - prompt, capture.values.lens);
  }

  async tell(piece) {
    // What follows the piece is expected at the last of its tokens.
    const lens = this.read.get(piece.first + piece.count - 1);
    if (!lens) return;
    this.pointed = piece;
    try {
      const rows = await Promise.all(Object.entries(lens).map(async ([point, {token_ids, logprobs}]) => {
        const cells = await Promise.all(token_ids.map(async (id, i) =>
            element("td", {}, `${await textOf(id)} ${(100 * Math.exp(logprobs[i])).toFixed(1)} %`)));
        return element("tr", {}, element("th", {scope: "row"}, point), ...cells);
      }));
      if (this.pointed !== piece) return;
      this.note.textContent = `Expected behind ${JSON.stringify(piece.node.textContent)}`;
      this.table.replaceChildren(...rows);
    } catch (error) {
      texts.clear();
      this.note.textContent = error.message;
    }
  }

  update() {}
}
