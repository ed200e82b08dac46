// The panel Features: which dictionary reads the answer's tokens, which feature colours them, and a
// slider for each feature that is pinned. Shown where the server has a dictionary.
import {call} from "./api.js";
import {element} from "./markdown.js";

const MIN_REACH = 100;  // of a slider, where a feature's values are smaller or not known

const panel = document.getElementById("features");
const picker = document.getElementById("dictionary");
const coloured = document.getElementById("feature-colour");
const list = document.getElementById("pinned");
const pinned = new Map();  // "dictionary layer feature" -> () => the element of `steering`, or null
let onColour = () => {};

// `whenChanged` runs when another feature is to colour the tokens.
export function setUpFeatures(whenChanged) {
  onColour = whenChanged;
  coloured.addEventListener("change", () => onColour());
}

// {dictionary, layer, site}: what reads the tokens; null where nothing does.
function reader() {
  return picker.value ? JSON.parse(picker.value) : null;
}

// The number of the feature that colours the tokens; null: none.
export const colouring = () => (coloured.value === "" ? null : Number(coloured.value));

export async function loadFeatures(settings) {
  if (settings["enable-steering"] !== "true") return;
  const {dictionaries} = await (await call("v1/steering/dictionaries")).json();
  picker.replaceChildren(element("option", {value: ""}, "off"));
  for (const {name, layers} of dictionaries) {
    for (const {read, features} of layers) {
      const [site, layer] = [read.slice(0, read.lastIndexOf(".")), Number(read.slice(read.lastIndexOf(".") + 1))];
      const value = JSON.stringify({dictionary: name, layer, site, features});
      picker.append(element("option", {value}, `${name} at ${site} ${layer} (${features})`));
    }
  }
  pinned.clear();
  list.replaceChildren();
  document.getElementById("dictionary-field").hidden = settings["capture-memory-mb"] === "0";
  panel.hidden = !dictionaries.length;
}

// Adds a slider for a feature; `seen`: the largest value that it had.
export function pin({dictionary, layer}, feature, seen) {
  const key = `${dictionary} ${layer} ${feature}`;
  if (pinned.has(key)) return;
  const reach = Math.max(MIN_REACH, Math.ceil(2 * seen));
  const id = `feature-${pinned.size}-${feature}`;
  const input = element("input", {id, type: "range", min: -reach, max: reach, step: reach / 100, value: 0});
  const kind = element("select", {"aria-label": `What becomes of feature ${feature}`},
                       element("option", {value: "add"}, "add"), element("option", {value: "set"}, "set to"));
  const shown = element("output", {for: id}, "off");
  const clampOf = () => {
    const value = Number(input.value);
    if (kind.value === "add" && value === 0) return null;
    return {op: "feature", dictionary, layer, feature, kind: kind.value, value};
  };
  const show = () => {
    shown.textContent = clampOf() ? String(Number(input.value)).replace("-", "−") : "off";
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", show);
  kind.addEventListener("change", show);
  input.addEventListener("dblclick", () => { input.value = 0; show(); });
  const drop = element("button", {type: "button", "aria-label": `Unpin feature ${feature}`}, "×");
  const node = element("div", {class: "slider"},
                       element("div", {class: "top"}, element("label", {for: id}, `${dictionary} ${feature}`), kind, shown, drop),
                       input);
  drop.addEventListener("click", () => {
    pinned.delete(key);
    node.remove();
  });
  pinned.set(key, clampOf);
  list.append(node);
}

// The request fields that the panel stands for, in words what they do, and what reads the answer.
export function featureFields() {
  const clamps = [...pinned.values()].map((clampOf) => clampOf()).filter(Boolean);
  const read = reader();
  const words = clamps.map(({feature, kind, value}) => `feature ${feature} ${kind} ${String(value).replace("-", "−")}`);
  const capture = read && {response: {sites: {[read.site]: [read.layer]}, positions: "all_generated",
                                      values: ["rows"], dtype: "float32"}};
  return {clamps, words: words.join(", "), read, capture};
}
