// The conversation: what was said, the answer that is being streamed, and how each is shown.
import {ApiError, call, events} from "./api.js";
import {asCurl, asPython} from "./copies.js";
import {FeatureView} from "./feature_view.js";
import {featureFields, setUpFeatures} from "./features.js";
import {addRow, clearGrid} from "./grid.js";
import {HeatView} from "./heat.js";
import {LensView, lensCapture} from "./lens_view.js";
import {element, MarkdownView} from "./markdown.js";
import {PatternView, patternCapture} from "./pattern_view.js";
import {steeringFields} from "./steering.js";

const log = document.getElementById("log");
const hint = document.getElementById("hint");
const whole = new Intl.NumberFormat();
const NEAR_END_PX = 80;
const LEAST_MS = 5;

// What the request's fields are from: set by the sampling form.
//   fields(): the request fields; mode(): "chat" or "completion"; system(): the system prompt;
//   refuse(param, message): shows which field the server refused.
let form = null;
let turns = [];  // {role, content, node, view}
let running = null;  // the AbortController of the answer that is streaming
let onRunning = () => {};

export function setUpChat(sampling, whenRunning) {
  form = sampling;
  onRunning = whenRunning;
  setUpFeatures(() => {
    for (const {view} of turns) view?.tokens?.update();
  });
}

export const isRunning = () => running !== null;
export const stop = () => running?.abort();

export function clear() {
  stop();
  for (const turn of turns) turn.node.remove();
  turns = [];
  clearGrid();
  hint.hidden = false;
}

function addTurn(role, content) {
  const title = element("h2", {class: "unseen"}, role === "user" ? "You" : "Model");
  const body = element("div", {class: "body"});
  const node = element("article", {class: `message ${role}`}, title, body);
  if (role === "user") body.textContent = content;
  log.append(node);
  hint.hidden = true;
  const turn = {role, content, node, body, thinking: ""};
  turns.push(turn);
  return turn;
}

export async function say(text) {
  if (running) return;
  addTurn("user", text);
  await answer();
}

// Answers the last message of the user anew.
async function again() {
  if (running || turns.at(-1)?.role !== "assistant") return;
  turns.pop().node.remove();
  await answer();
}

// Answers that failed are left out, and what was said twice without one is one message: templates
// may insist on turns that alternate.
function messages() {
  const system = form.system();
  const said = system ? [{role: "system", content: system}] : [];
  for (const {role, content} of turns) {
    if (!content) continue;
    if (said.at(-1)?.role === role) said.at(-1).content += `\n\n${content}`;
    else said.push({role, content});
  }
  return said;
}

function requestOf(steering) {
  const common = {...form.fields(), ...steering, return_token_ids: true, stream: true,
                  stream_options: {include_usage: true, continuous_usage_stats: true}};
  if (form.mode() === "completion") {
    // What was written so far goes on: the user's text and the model's, as one.
    return ["v1/completions", {...common, prompt: turns.map((turn) => turn.content).join("")}];
  }
  return ["v1/chat/completions", {...common, messages: messages()}];
}

// The view of the first reader; those behind it are said not to be shown.
function readView(body, readers) {
  if (!readers.length) return null;
  const [[name, asked, View], ...others] = readers;
  const view = new View(body, asked);
  if (others.length) {
    body.append(element("p", {class: "quiet unread", role: "status"},
        `Read by ${name}: an answer has one reader. Not shown: ${others.map(([each]) => each).join(", ")}.`));
  }
  return view;
}

// What the panels ask for together: the request's fields, in words what steers, and what reads the
// tokens. Attention is told in place of the lens, which reads them in place of a dictionary, which does
// in place of a probe: there is one consumer.
function tapFields() {
  const {fields, words, probed} = steeringFields();
  const {clamps, words: clampWords, read, capture} = featureFields();
  const steering = [...(fields.steering ?? []), ...clamps];
  const lens = lensCapture();
  const attention = patternCapture();
  const both = {capture: attention ?? lens ?? capture ?? fields.capture, steering: steering.length ? steering : undefined};
  const readers = [
    ["the attention pattern", attention, PatternView], ["the lens", lens, LensView],
    ["the dictionary", read, FeatureView], ["the heat map", probed, HeatView],
  ].filter(([, asked]) => asked);
  return {fields: JSON.parse(JSON.stringify(both)), words: [words, clampWords].filter(Boolean).join(", "),
          viewOf: (body) => readView(body, readers)};
}

// How the answer's text is shown: by token where something reads them, as Markdown else.
class AnswerView {
  constructor(turn, viewOf) {
    this.turn = turn;
    this.tokens = viewOf(turn.body);
    this.markdown = this.tokens ? null : new MarkdownView(turn.body);
    this.stats = element("span");
    this.footer = element("footer", {}, this.stats);
    turn.node.append(this.footer);
    this.frame = 0;
  }

  // At most once a frame, however fast tokens come.
  schedule() {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
    const {turn} = this;
    if (turn.thinking) {
      this.thinking ??= turn.body.insertBefore(
          element("details", {class: "thinking"}, element("summary", {}, "Thinking"), ""), turn.body.firstChild);
      this.thinking.lastChild.data = turn.thinking;
    }
    if (this.tokens) this.tokens.update();
    else this.markdown.update(turn.content);
    if (follows) log.scrollTop = log.scrollHeight;
  }
}

function describe(meter, words, stopped) {
  const parts = [`${whole.format(meter.tokens)} ${meter.tokens === 1 ? "token" : "tokens"}`];
  // A busy page reads many at once, which does not tell how fast they came.
  const since = meter.last - meter.first < LEAST_MS ? meter.begin : meter.first;
  const seconds = (meter.last - since) / 1000;
  if (meter.tokens > 1 && seconds > 0) parts.push(`${whole.format(Math.round((meter.tokens - 1) / seconds))} tokens/s`);
  if (meter.first) parts.push(`first after ${Math.max(1, Math.round(meter.first - meter.begin))} ms`);
  if (meter.cached) parts.push(`${whole.format(meter.cached)} of ${whole.format(meter.prompt)} prompt tokens cached`);
  if (words) parts.push(words);
  if (stopped) parts.push("stopped");
  else if (meter.finish === "length") parts.push("cut off at the most tokens");
  return parts.join(" · ");
}

// Takes one event of the stream into the turn.
function take(event, turn, view, meter) {
  const before = meter.tokens;
  if (event.usage) {
    meter.prompt = event.usage.prompt_tokens;
    meter.tokens = event.usage.completion_tokens;
    meter.cached = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
  }
  if (meter.tokens > before) {
    meter.last = performance.now();
    meter.first ||= meter.last;
  }
  if (event.capture) view.tokens?.take(event.capture, meter.prompt);
  meter.ids ??= event.prompt_token_ids ?? event.choices?.[0]?.prompt_token_ids ?? null;
  const choice = event.choices?.[0];
  if (!choice) return;
  const text = choice.text ?? choice.delta?.content ?? "";
  turn.content += text;
  turn.thinking += choice.delta?.reasoning ?? choice.delta?.reasoning_content ?? "";
  if (text) {
    // Tokens whose text was held back belong to the piece that brings it.
    view.tokens?.add(text, meter.shown, meter.tokens - meter.shown);
    meter.shown = meter.tokens;
  }
  meter.finish = choice.finish_reason ?? meter.finish;
}

async function stream(turn, view, meter, words, request, signal) {
  const [path, body] = request;
  const response = await call(path, {body, signal});
  turn.body.classList.remove("waiting");
  for await (const event of events(response)) {
    take(event, turn, view, meter);
    view.stats.textContent = describe(meter, words, false);
    view.schedule();
  }
}

async function answer() {
  const {fields, words, viewOf} = tapFields();
  const request = requestOf(fields);
  const turn = addTurn("assistant", "");
  turn.body.classList.add("waiting");
  const view = new AnswerView(turn, viewOf);
  turn.view = view;
  const meter = {begin: performance.now(), first: 0, last: 0, tokens: 0, prompt: 0, cached: 0, shown: 0, finish: null, ids: null};
  running = new AbortController();
  onRunning(true);
  log.scrollTop = log.scrollHeight;
  let stopped = false;
  try {
    await stream(turn, view, meter, words, request, running.signal);
  } catch (error) {
    stopped = error.name === "AbortError";
    if (!stopped) showError(turn, error);
  }
  turn.body.classList.remove("waiting");
  view.stats.textContent = describe(meter, words, stopped);
  view.draw();
  if (meter.ids) addRow(meter.ids, meter.cached, words);
  addActions(turn, view.footer, request);
  running = null;
  onRunning(false);
}

function showError(turn, error) {
  if (!(error instanceof ApiError)) console.error(error);
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  turn.node.append(element("p", {class: "error", role: "alert"}, error.message + wait));
  form.refuse(error.param, error.message);
}

// The same request without steering, beside the steered answer.
async function compare(turn, [path, body], button) {
  button.remove();
  const plain = element("div", {class: "body waiting"});
  const columns = element("div", {class: "columns"});
  turn.body.replaceWith(columns);
  columns.append(element("div", {}, element("h3", {class: "quiet"}, "plain"), plain),
                 element("div", {}, element("h3", {class: "quiet"}, "steered"), turn.body));
  const {steering, capture, stream, stream_options, ...unsteered} = body;
  try {
    const {choices: [choice]} = await (await call(path, {body: unsteered})).json();
    new MarkdownView(plain).update(choice.text ?? choice.message.content ?? "");
  } catch (error) {
    plain.append(element("p", {class: "error", role: "alert"}, error.message));
  }
  plain.classList.remove("waiting");
}

function addCopy(footer, name, text) {
  const copy = element("button", {type: "button", class: "copy"}, name);
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text());
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = name; }, 1500);
  });
  footer.append(copy);
}

// Only the last answer can be asked for again.
function addActions(turn, footer, request) {
  for (const node of log.querySelectorAll(".again")) node.remove();
  const repeat = element("button", {type: "button", class: "again"}, "Again");
  repeat.addEventListener("click", again);
  footer.append(repeat);
  if (turn.content && request[1].steering) {
    const beside = element("button", {type: "button", class: "compare"}, "Compare");
    beside.addEventListener("click", () => compare(turn, request, beside));
    footer.append(beside);
  }
  if (!turn.content || !navigator.clipboard) return;
  const [path, {stream, stream_options, return_token_ids, ...body}] = request;
  addCopy(footer, "Copy", () => turn.content);
  addCopy(footer, "curl", () => asCurl(path, body));
  addCopy(footer, "Python", () => asPython(path, body));
}
