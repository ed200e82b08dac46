// The page: finds out what the server is, wires the forms to the conversation, shows how it goes.
import {call, onKeyNeeded} from "./api.js";
import {clear, isRunning, say, setUpChat, stop} from "./chat.js";
import {loadFeatures} from "./features.js";
import {setUpGrid} from "./grid.js";
import {loadLens} from "./lens_view.js";
import {watchServer} from "./metrics.js";
import {loadPatterns} from "./pattern_view.js";
import {loadSteering} from "./steering.js";

const $ = (id) => document.getElementById(id);
const prompt = $("prompt");
const sampling = $("sampling");

const state = {model: "", up: false, locked: false, loading: false, hasChat: true};

function showStatus(text, kind = "") {
  if ($("status").textContent !== text) $("status").textContent = text;
  $("status").className = kind;
}

// --- The key ---

onKeyNeeded((refused) => new Promise((resolve) => {
  const dialog = $("key-dialog");
  const form = dialog.querySelector("form");
  $("key-wrong").hidden = !refused;
  $("key").value = "";
  const given = new AbortController();
  const done = (key) => {
    given.abort();
    dialog.close();
    $("key").value = "";
    resolve(key);
  };
  const {signal} = given;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    done($("key").value.trim());
  }, {signal});
  $("key-cancel").addEventListener("click", () => done(null), {signal});
  dialog.addEventListener("cancel", () => done(null), {signal});
  dialog.showModal();
}));

// --- The sampling form ---

const mode = () => new FormData(sampling).get("mode") ?? "completion";

function showMode() {
  const chat = mode() === "chat";
  $("system-field").hidden = !chat;
  prompt.placeholder = chat ? "Message" : "Text to go on from";
  prompt.previousElementSibling.textContent = prompt.placeholder;
  $("hint").textContent = !state.model ? "" :
      chat ? "Say something." : "Write the beginning of a text; the model goes on.";
}

setUpChat({
  mode,
  system: () => sampling.elements.system.value.trim(),
  // Empty fields are the server's business.
  fields() {
    const fields = {model: state.model};
    for (const input of sampling.querySelectorAll("input[type=number]")) {
      input.removeAttribute("aria-invalid");
      if (input.value !== "") fields[input.name] = Number(input.value);
    }
    if (sampling.elements.ignore_eos.checked) fields.ignore_eos = true;
    return fields;
  },
  refuse(param, message) {
    const input = param && sampling.elements.namedItem(param);
    if (!input?.setCustomValidity) return;
    input.setAttribute("aria-invalid", "true");
    input.title = message;
  },
}, (running) => {
  $("send").hidden = running;
  $("stop").hidden = !running;
  if (!running) prompt.focus();
});

sampling.addEventListener("change", showMode);
sampling.addEventListener("submit", (event) => event.preventDefault());

// --- The composer ---

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = mode() === "chat" ? prompt.value.trim() : prompt.value;
  if (!text || isRunning() || !state.model) return;
  if (!sampling.reportValidity()) return;
  prompt.value = "";
  fit();
  say(text);
});
prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && isRunning()) stop();
});
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", () => {
  clear();
  prompt.focus();
});
$("show-panels").addEventListener("click", () => {
  const open = $("panels").classList.toggle("open");
  $("show-panels").setAttribute("aria-expanded", open);
});

// --- The server ---

async function load() {
  const models = await (await call("v1/models")).json();
  const info = await (await call("server_info")).json();
  state.model = models.data[0].id;
  state.hasChat = info.chat_template !== false;
  $("model").textContent = state.model;
  document.title = `${state.model} · Rudder`;
  $("mode").hidden = !state.hasChat;
  if (!state.hasChat) sampling.elements.mode.value = "completion";
  showMode();
  await loadSteering(info.settings ?? {});
  await loadFeatures(info.settings ?? {});
  loadLens(info.settings ?? {});
  loadPatterns(info.settings ?? {}, models.data[0]);
  setUpGrid(info.settings ?? {});
  state.up = true;
}

// Loads once; where that fails the next poll, or the user, tries again.
async function tryToLoad() {
  if (state.loading) return;
  state.loading = true;
  try {
    await load();
    state.locked = false;
  } catch (error) {
    state.locked = error.status === 401;
    showStatus(state.locked ? "locked" : error.message, "bad");
  }
  $("unlock").hidden = !state.locked;
  state.loading = false;
}
$("unlock").addEventListener("click", tryToLoad);

watchServer({
  ready: async () => {
    if (!state.up && !state.locked) await tryToLoad();
    return state.up;
  },
  onState(error) {
    if (!error) showStatus("ready", "ready");
    else if (error.status === 503) showStatus("busy", "bad");
    else showStatus(error.message, "bad");
  },
});
showMode();
prompt.focus();
