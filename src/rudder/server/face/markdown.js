// Markdown to nodes. Text becomes text nodes and nothing else, whatever it says: no markup of the
// model's reaches the document. Covers what models write: headings, lists, code, tables, quotes,
// emphasis, links.

const MAX_DEPTH = 8;  // of lists, quotes and emphasis inside each other; deeper is plain text

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "s"], ["*", "em"], ["_", "em"]];
const SPECIAL = /[`*_~[\\!h]/g;
const WORD = /[\p{L}\p{N}]/u;

// Appends the inline content of `text` to `parent`.
function inline(parent, text, depth) {
  const unclosed = new Set();  // marks that are not found again: each is looked for once
  const closing = (mark, from) => {
    if (unclosed.has(mark)) return -1;
    const at = text.indexOf(mark, from);
    if (at < 0) unclosed.add(mark);
    return at;
  };
  let plain = "";
  let at = 0;
  const flush = (node) => {
    if (plain) parent.append(plain);
    plain = "";
    if (node) parent.append(node);
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const found = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, found);
    at = found;
    if (at === text.length) break;
    const end = depth < MAX_DEPTH ? special(text, at, closing, flush, depth) : at;
    if (end > at) {
      at = end;
    } else if (text[at] === "\\" && /[!-/:-@[-`{-~]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at++];
    }
  }
  flush();
  return parent;
}

// What begins at `at`, handed to `flush` as a node; returns where it ends, or `at` if nothing does.
function special(text, at, closing, flush, depth) {
  if (text[at] === "`") {
    const ticks = /`+/y;
    ticks.lastIndex = at;
    const [fence] = ticks.exec(text);
    const end = closing(fence, at + fence.length);
    if (end < 0) return at;
    flush(element("code", {}, text.slice(at + fence.length, end).replace(/^ (.*) $/s, "$1")));
    return end + fence.length;
  }
  if (text[at] === "[" || text.startsWith("![", at)) {
    const open = text[at] === "[" ? at : at + 1;
    const middle = closing("](", open);
    const end = middle < 0 ? -1 : closing(")", middle);
    if (end < 0) return at;
    const address = text.slice(middle + 2, end).split(/\s/)[0];
    if (!/^(https?:|mailto:)/i.test(address)) return at;
    flush(link(address, text.slice(open + 1, middle), depth));
    return end + 1;
  }
  if (text[at] === "h") {
    const bare = /https?:\/\/[^\s<>"'`)\]]*[^\s<>"'`)\].,;:!?]/y;
    bare.lastIndex = at;
    const address = bare.exec(text)?.[0];
    if (!address || WORD.test(text[at - 1] ?? "")) return at;
    flush(link(address, address, MAX_DEPTH));
    return at + address.length;
  }
  for (const [mark, name] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const begin = at + mark.length;
    if (/\s/.test(text[begin] ?? " ")) continue;
    if (mark[0] === "_" && WORD.test(text[at - 1] ?? "")) continue;  // snake_case
    const end = closing(mark, begin + 1);
    if (end < 0 || /\s/.test(text[end - 1])) continue;
    flush(inline(element(name), text.slice(begin, end), depth + 1));
    return end + mark.length;
  }
  return at;
}

function link(address, label, depth) {
  const node = element("a", {href: address, rel: "noopener noreferrer", target: "_blank", title: address});
  return inline(node, label, depth + 1);
}

const FENCE = /^ {0,3}(```+|~~~+)\s*(\S*)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || line.startsWith(">");
}

// Lines of one block, cut off the front of `lines` from `at` on: [kind, where it ends].
function blockAt(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  let end = at + 1;
  if (fence) {
    while (end < lines.length && !lines[end].trim().startsWith(fence[1])) ++end;
    return ["code", Math.min(end + 1, lines.length)];
  }
  if (HEADING.test(line)) return ["heading", end];
  if (RULE.test(line)) return ["rule", end];
  if (line.startsWith(">")) {
    while (end < lines.length && lines[end].startsWith(">")) ++end;
    return ["quote", end];
  }
  if (ITEM.test(line)) {
    // Up to a line that is neither an item nor indented; an empty one between items belongs to it.
    while (end < lines.length) {
      const next = lines[end].trim() ? lines[end] : lines[end + 1] ?? "";
      if (!ITEM.test(next) && !/^\s{2,}\S/.test(next)) break;
      ++end;
    }
    return ["list", end];
  }
  if (line.includes("|") && TABLE.test(lines[at + 1] ?? "x") && lines[at + 1].includes("|")) {
    for (end = at + 2; end < lines.length && lines[end].includes("|");) ++end;
    return ["table", end];
  }
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) ++end;
  return ["paragraph", end];
}

function list(lines, depth) {
  const [, indent, marker] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(marker);
  const node = element(ordered ? "ol" : "ul");
  if (ordered) node.setAttribute("start", parseInt(marker, 10));
  let at = 0;
  while (at < lines.length) {
    const [, , , text] = ITEM.exec(lines[at]);
    let end = at + 1;
    while (end < lines.length) {
      const next = ITEM.exec(lines[end]);
      if (next && next[1].length <= indent.length) break;
      ++end;
    }
    const inner = lines.slice(at + 1, end);
    const shift = Math.min(...inner.filter((l) => l.trim()).map((l) => l.search(/\S/)));
    const item = inline(element("li"), text, depth);
    if (inner.some((l) => l.trim())) {
      blocks(inner.map((l) => l.slice(shift)).join("\n"), depth + 1).forEach(([, , make]) => item.append(make()));
    }
    node.append(item);
    at = end;
  }
  return node;
}

function table(lines, depth) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, name) =>
      element("tr", {}, ...cells(line).map((cell) => inline(element(name), cell, depth)));
  return element("table", {}, element("thead", {}, row(lines[0], "th")),
                 element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td"))));
}

function build(kind, lines, depth) {
  const text = lines.join("\n");
  switch (kind) {
    case "code": {
      const [, fence] = FENCE.exec(lines[0]);
      const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
      return element("pre", {}, element("code", {}, lines.slice(1, closed ? -1 : undefined).join("\n")));
    }
    case "heading": {
      const [, marks, title] = HEADING.exec(lines[0]);
      return inline(element(`h${Math.min(marks.length + 2, 6)}`), title, depth);
    }
    case "rule":
      return element("hr");
    case "quote": {
      const inner = lines.map((line) => line.replace(/^> ?/, "")).join("\n");
      const node = element("blockquote");
      blocks(inner, depth + 1).forEach(([, , make]) => node.append(make()));
      return node;
    }
    case "list":
      return list(lines, depth);
    case "table":
      return table(lines, depth);
    default:
      return inline(element("p"), text.trim(), depth);
  }
}

// [kind, source, () => node] of each block.
function blocks(text, depth) {
  const lines = text.split("\n");
  const found = [];
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      ++at;
      continue;
    }
    const [kind, end] = depth < MAX_DEPTH ? blockAt(lines, at) : ["paragraph", lines.length];
    const own = lines.slice(at, end);
    found.push([kind, own.join("\n"), () => build(kind, own, depth)]);
    at = end;
  }
  return found;
}

// Shows a text that grows: blocks that have not changed keep their nodes.
export class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.shown = [];  // [source, node]
  }

  update(text) {
    const wanted = blocks(text, 0);
    let same = 0;
    while (same < wanted.length && this.shown[same]?.[0] === wanted[same][1]) ++same;
    for (const [, node] of this.shown.splice(same)) node.remove();
    for (const [, source, make] of wanted.slice(same)) {
      const node = make();
      this.parent.append(node);
      this.shown.push([source, node]);
    }
  }
}
