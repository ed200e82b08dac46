// A request as text that asks the same elsewhere: a command for a shell, a program in Python.
import {hasKey} from "./api.js";

const KEY = "RUDDER_API_KEY";

export function asCurl(path, body) {
  const quoted = JSON.stringify(body, null, 1).replaceAll("'", "'\\''");
  const key = hasKey() ? ` \\\n  -H "Authorization: Bearer $${KEY}"` : "";
  return `curl -s ${new URL(path, location.href)} -H 'Content-Type: application/json'${key} -d '${quoted}'\n`;
}

function literal(value, indent) {
  const inner = `${indent}    `;
  const lines = (open, parts, close) => (parts.length ? `${open}\n${parts.map((part) => inner + part).join(",\n")}\n${indent}${close}` : open + close);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return lines("[", value.map((each) => literal(each, inner)), "]");
  if (typeof value === "object") {
    return lines("{", Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, inner)}`), "}");
  }
  return JSON.stringify(value);  // a number, or a string: JSON's escapes are Python's
}

export function asPython(path, body) {
  const base = new URL("v1", location.href);
  const key = hasKey() ? `os.environ["${KEY}"]` : '"none"';
  return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI\n\n` +
      `client = OpenAI(base_url="${base}", api_key=${key})\n` +
      `answer = client.post("${path.replace(/^v1/, "")}", cast_to=object, body=${literal(body, "")})\n` +
      `print(answer["choices"][0]${body.messages ? '["message"]["content"]' : '["text"]'})\n`;
}
