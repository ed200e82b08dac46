// The steering panel: a slider for each named module, and which of their vectors the answer's tokens
// are measured by. Shown where the server steers.
import {call} from "./api.js";
import {element} from "./markdown.js";

const SCALED = new Set(["add", "add_norm", "add_renorm"]);  // the ops that a module's scale multiplies
const MEASURE = "cosine";

const panel = document.getElementById("steering");
const probe = document.getElementById("probe");
const scales = new Map();  // name -> () => scale, 0 for off
let canCapture = false;

// "resid_post 3, 5–7": where a module acts.
function reach(ops) {
  const bySite = Map.groupBy ? Map.groupBy(ops, (op) => op.site) : new Map([["", ops]]);
  return [...bySite].map(([site, own]) => {
    const layers = [...new Set(own.map((op) => op.layer))].sort((a, b) => a - b);
    const runs = [];
    for (const layer of layers) {
      if (runs.length && layer === runs.at(-1)[1] + 1) runs.at(-1)[1] = layer;
      else runs.push([layer, layer]);
    }
    return `${site} ${runs.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ")}`.trim();
  }).join("; ");
}

function slider(name, ops) {
  const id = `scale-${name}`;
  const input = element("input", {id, type: "range", min: -2, max: 2, step: 0.05, value: 0, list: "zero"});
  const shown = element("output", {for: id}, "off");
  const show = () => {
    const value = Number(input.value);
    shown.textContent = value ? `${value > 0 ? "+" : "−"}${Math.abs(value).toFixed(2)}` : "off";
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", show);
  input.addEventListener("dblclick", () => { input.value = 0; show(); });
  show();
  scales.set(name, () => Number(input.value));
  return element("div", {class: "slider"},
                 element("div", {class: "top"}, element("label", {for: id}, name), shown), input,
                 element("div", {class: "quiet"}, reach(ops)));
}

function toggle(name, ops) {
  const input = element("input", {type: "checkbox"});
  scales.set(name, () => (input.checked ? 1 : 0));
  const kinds = [...new Set(ops.map((op) => op.op))].join(", ");
  return element("div", {class: "slider"}, element("label", {class: "switch"}, input, name),
                 element("div", {class: "quiet"}, `${kinds} at ${reach(ops)}`));
}

function fillProbes(modules) {
  probe.replaceChildren(element("option", {value: ""}, "off"));
  for (const {name, ops} of modules) {
    const points = new Set(ops.filter((op) => op.norm > 0 && SCALED.has(op.op))
                               .map((op) => `${op.site} ${op.layer}`));
    if (!points.size) continue;
    const options = [...points].map((point) =>
        element("option", {value: JSON.stringify([name, ...point.split(" ")])}, `${name} at ${point}`));
    probe.append(element("optgroup", {label: name}, ...options));
  }
}

// `settings`: the server's, by name.
export async function loadSteering(settings) {
  if (settings["enable-steering"] !== "true") return;
  const {modules} = await (await call("v1/steering/modules")).json();
  const list = document.getElementById("modules");
  scales.clear();
  list.replaceChildren(...modules.map(({name, ops}) =>
      (ops.some((op) => SCALED.has(op.op)) ? slider : toggle)(name, ops)));
  if (!modules.length) {
    list.append(element("p", {class: "quiet"}, "No module is registered: start the server with " +
                        "--steering-module, or POST one to /v1/steering/modules."));
  }
  canCapture = settings["capture-memory-mb"] !== "0";
  fillProbes(modules);
  document.getElementById("probe-field").hidden = !canCapture || probe.options.length < 2;
  panel.hidden = false;
}

// The request fields that the panel stands for, and in words what they do.
export function steeringFields() {
  const steering = [...scales].map(([name, scale]) => ({name, scale: scale()})).filter(({scale}) => scale);
  const fields = steering.length ? {steering} : {};
  const words = steering.map(({name, scale}) => `${name} ${scale > 0 ? "+" : "−"}${Math.abs(scale)}`).join(", ");
  let probed = null;
  if (canCapture && probe.value) {
    const [name, site, layer] = JSON.parse(probe.value);
    probed = {name, point: `${site}.${layer}`, measure: MEASURE};
    fields.capture = {response: {sites: {[site]: [Number(layer)]}, positions: "all_generated",
                                 values: ["probes"], probes: {[name]: name}, measure: MEASURE}};
  }
  return {fields, words, probed};
}
