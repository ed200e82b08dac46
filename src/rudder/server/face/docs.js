// The API as this server documents it: /openapi.json as a page. Schemas open where they are asked
// for, since some of them contain themselves.
import {element} from "./markdown.js";

const operations = document.getElementById("operations");
const find = document.getElementById("find");

let schemas = {};

const nameOf = (ref) => ref.split("/").pop();
const resolved = (schema) => (schema.$ref ? schemas[nameOf(schema.$ref)] ?? {} : schema);

function rangeOf(schema) {
  const low = schema.minimum ?? schema.exclusiveMinimum;
  const high = schema.maximum ?? schema.exclusiveMaximum;
  if (low === undefined && high === undefined) return "";
  return ` ${low ?? "…"}${schema.exclusiveMinimum !== undefined ? " <" : ""} to ${high ?? "…"}`;
}

// In a few words: what a value is.
function typeOf(schema) {
  if (schema === true) return "anything";
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const forms = schema.oneOf ?? schema.anyOf;
  if (forms) return forms.map(typeOf).join(" or ");
  if (schema.allOf) return schema.allOf.map(typeOf).join(" and ");
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? true)}`;
  const type = Array.isArray(schema.type) ? schema.type.join(" or ") : schema.type ?? (schema.properties ? "object" : "anything");
  return type + rangeOf(schema);
}

// The schemas that say what is inside of a value: its own, or those of its forms. `seen` ends those
// that contain themselves.
function insides(schema, seen = new Set()) {
  if (schema === true || seen.has(schema)) return [];
  const own = resolved(schema);
  seen.add(schema).add(own);
  if (own.properties) return [own];
  const inner = own.items ? [own.items] : own.allOf ?? own.oneOf ?? own.anyOf ?? [];
  return inner.flatMap((form) => insides(form, seen));
}

function* propertiesOf(schema) {
  for (const inside of insides(schema)) {
    const required = new Set(inside.required ?? []);
    for (const [name, value] of Object.entries(inside.properties)) yield {name, value, required: required.has(name)};
  }
}

// A list of the fields; what is inside of one is made when it is opened.
function fieldList(schema) {
  const list = element("ul");
  for (const {name, value, required} of propertiesOf(schema)) {
    const told = [element("code", {}, name), ` ${typeOf(value)}${required ? ", required" : ""}`];
    if (value.default !== undefined) told.push(`, default ${JSON.stringify(value.default)}`);
    const words = resolved(value).description;
    if (words) told.push(element("span", {class: "quiet"}, ` ${words}`));
    if (insides(value).length === 0) {
      list.append(element("li", {}, ...told));
      continue;
    }
    const inner = element("details", {}, element("summary", {}, ...told));
    inner.addEventListener("toggle", () => {
      if (inner.open && inner.childElementCount === 1) inner.append(fieldList(value));
    });
    list.append(element("li", {}, inner));
  }
  return list;
}

function* contentOf(content, title) {
  for (const [type, {schema, examples}] of Object.entries(content ?? {})) {
    yield element("h3", {}, `${title} (${type}${schema?.$ref ? `, ${nameOf(schema.$ref)}` : ""})`);
    if (schema) yield fieldList(schema);
    for (const [name, {value}] of Object.entries(examples ?? {})) {
      yield element("details", {}, element("summary", {}, `example: ${name}`),
                    element("pre", {}, JSON.stringify(value, null, 2)));
    }
  }
}

function operationView(method, path, operation) {
  const view = element("details", {class: "operation", id: `${method} ${path}`},
      element("summary", {}, element("code", {}, element("span", {class: "method"}, method.toUpperCase()), ` ${path}`),
              element("span", {class: "quiet"}, operation.summary ?? "")));
  const fields = [...propertiesOf(operation.requestBody?.content?.["application/json"]?.schema ?? {})];
  view.words = [method, path, operation.summary ?? "", ...fields.map(({name}) => name)].join(" ").toLowerCase();
  view.addEventListener("toggle", () => {
    if (!view.open || view.childElementCount > 1) return;
    const inside = element("div", {class: "inside"});
    if (operation.security) inside.append(element("p", {class: "quiet"}, "needs a key, as a bearer token"));
    inside.append(...contentOf(operation.requestBody?.content, "Request"));
    for (const [status, {content}] of Object.entries(operation.responses)) {
      inside.append(...contentOf(content, status === "default" ? "Error" : `Answer ${status}`));
    }
    view.append(inside);
  });
  return view;
}

const subjectOf = (path) => {
  if (path.startsWith("/v1/steering")) return "Steering";
  return path.startsWith("/v1/") || path.endsWith("tokenize") ? "Models" : "Server";
};

async function load() {
  const response = await fetch("openapi.json", {credentials: "omit"});
  if (!response.ok) throw new Error(`The server answered ${response.status}.`);
  const document = await response.json();
  schemas = document.components.schemas;
  window.document.getElementById("version").textContent = document.info.version;
  const sections = new Map(["Models", "Steering", "Server"].map((name) =>
      [name, element("section", {}, element("h2", {}, name))]));
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      sections.get(subjectOf(path)).append(operationView(method, path, operation));
    }
  }
  operations.replaceChildren(...sections.values());
}

find.addEventListener("input", () => {
  const wanted = find.value.trim().toLowerCase();
  for (const view of operations.querySelectorAll(".operation")) view.hidden = !view.words.includes(wanted);
});

load().catch((error) => operations.replaceChildren(element("p", {class: "error", role: "alert"}, error.message)));
