// The prompts of the page's requests as a grid: a row a request, a cell a block of tokens. A block
// was found in the prefix cache (hit) or computed; one that was computed although an earlier request
// had the same tokens up to its end, steered in another way, is steered apart.
import {element} from "./markdown.js";

const MAX_ROWS = 24;
const MAX_BLOCKS = 64;  // the first of a prompt

const panel = document.getElementById("hits");
const grid = document.getElementById("hit-grid");
const rows = [];  // {ids, steering, node}
let blockSize = 16;

export function setUpGrid(settings) {
  blockSize = Number(settings["block-size"]) || blockSize;
}

export function clearGrid() {
  rows.length = 0;
  grid.replaceChildren();
  panel.hidden = true;
}

function startsAlike(a, b, count) {
  if (a.length < count || b.length < count) return false;
  for (let i = 0; i < count; ++i) if (a[i] !== b[i]) return false;
  return true;
}

// [{kind, end}] of the blocks of a prompt; the last may not be full.
function blocksOf(ids, cached, steering) {
  const blocks = [];
  for (let begin = 0; begin < ids.length && blocks.length < MAX_BLOCKS; begin += blockSize) {
    const end = Math.min(begin + blockSize, ids.length);
    const wasComputed = end - begin === blockSize &&
        rows.some((row) => row.steering !== steering && startsAlike(row.ids, ids, end));
    blocks.push({kind: end <= cached ? "hit" : wasComputed ? "apart" : "computed", begin, end});
  }
  return blocks;
}

// A request whose prompt the server has read: its tokens, how many of them were cached, what
// steered them, in words.
export function addRow(ids, cached, steering) {
  const blocks = blocksOf(ids, cached, steering);
  const counts = {hit: 0, apart: 0, computed: 0};
  const cells = blocks.map(({kind, begin, end}) => {
    ++counts[kind];
    return element("i", {class: kind, title: `tokens ${begin} to ${end - 1}: ${kind === "apart" ? "steered apart" : kind}`});
  });
  const label = `${ids.length} tokens${steering ? `, ${steering}` : ""}: ${counts.hit} hit, ` +
      `${counts.computed} computed, ${counts.apart} steered apart`;
  const node = element("div", {class: "hits", role: "img", "aria-label": label}, ...cells);
  rows.push({ids, steering, node});
  grid.append(node);
  if (rows.length > MAX_ROWS) rows.shift().node.remove();
  panel.hidden = false;
}
