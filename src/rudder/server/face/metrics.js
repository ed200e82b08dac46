// The server panel: /metrics once a second while the page is seen, as small pictures of the last
// minute.
import {call} from "./api.js";
import {element} from "./markdown.js";

const PERIOD_MS = 1000;
const KEPT = 60;  // samples
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = KEPT - 1;
const HEIGHT = 40;

// {name without its prefix, with labels: value}; labels but `state` are left out.
export function parse(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const found = /^(?:\w+:)?(\w+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const state = /(?:^|,)state="(\w+)"/.exec(found[2] ?? "");
    values[state ? `${found[1]} ${state[1]}` : found[1]] = Number(found[3]);
  }
  return values;
}

const whole = new Intl.NumberFormat(undefined, {maximumFractionDigits: 0});
const percent = new Intl.NumberFormat(undefined, {style: "percent", maximumFractionDigits: 1});

// A picture of one or two series, stacked where `stacked`; `top` is the least that its height means.
class Chart {
  constructor(title, {stacked = false, top = 1} = {}) {
    Object.assign(this, {title, stacked, top, samples: []});
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.paths = ["area", "line", "area second", "line second"].map((name) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      this.svg.append(path);
      return path;
    });
    this.now = element("span");
    this.figure = element("figure", {}, element("figcaption", {}, element("span", {}, title), this.now), this.svg);
  }

  // `values`: one number a series.
  push(values, words) {
    this.samples.push(values);
    if (this.samples.length > KEPT) this.samples.shift();
    this.now.textContent = words;
    this.svg.setAttribute("aria-label", `${this.title}: ${words}`);
    const heights = this.samples.map(([a, b]) => (this.stacked ? [a, a + b] : [a, b]));
    const most = Math.max(this.top, ...heights.map(([a, b = 0]) => Math.max(a, b)));
    const left = KEPT - this.samples.length;
    [0, 1].forEach((series) => {
      if (heights[0][series] === undefined) return;
      const points = heights.map((sample, i) => `${left + i} ${(HEIGHT - 1 - (sample[series] / most) * (HEIGHT - 3)).toFixed(1)}`);
      const line = `M${points.join("L")}`;
      this.paths[2 * series].setAttribute("d", `${line}L${WIDTH} ${HEIGHT}L${left} ${HEIGHT}Z`);
      this.paths[2 * series + 1].setAttribute("d", line);
    });
  }
}

const charts = {
  rate: new Chart("Generated", {top: 10}),
  queue: new Chart("Requests"),
  kv: new Chart("KV cache", {stacked: true, top: 1e-3}),
  prefix: new Chart("Prefix cache"),
};

function draw(now, before, seconds) {
  const since = (name) => (before ? Math.max(0, (now[name] ?? 0) - (before[name] ?? 0)) : 0);
  const rate = since("generation_tokens_total") / seconds;
  charts.rate.push([rate], `${whole.format(rate)} tokens/s`);

  const running = now.num_requests_running ?? 0;
  const waiting = now.num_requests_waiting ?? 0;
  charts.queue.push([running, waiting], `${running} running, ${waiting} waiting`);

  const [used, cached, free] = ["in_use", "cached", "free"].map((state) => now[`kv_blocks ${state}`] ?? 0);
  const all = used + cached + free || 1;
  charts.kv.push([used / all, cached / all], `${percent.format(used / all)} in use, ${percent.format(cached / all)} cached`);

  const asked = since("prefix_cache_queries_total");
  const last = charts.prefix.samples.at(-1)?.[0] ?? 0;
  const share = asked ? since("prefix_cache_hits_total") / asked : last;
  const ever = (now.prefix_cache_hits_total ?? 0) / (now.prefix_cache_queries_total || 1);
  charts.prefix.push([share], `${percent.format(share)} of prompts last, ${percent.format(ever)} ever`);
}

// Polls for ever, when `ready()` says that it may; `onState(error)` hears how each poll went, null
// when well.
export function watchServer({ready, onState}) {
  document.getElementById("charts").append(...Object.values(charts).map((chart) => chart.figure));
  let before = null;
  let taken = 0;
  const poll = async () => {
    if (document.hidden || !await ready()) return;
    try {
      const now = parse(await (await call("metrics", {quiet: true})).text());
      const at = performance.now();
      // After a pause or a restart of the server there is no rate to tell.
      const steady = before && at - taken < 5 * PERIOD_MS &&
          now.process_start_time_seconds === before.process_start_time_seconds;
      draw(now, steady ? before : null, (at - taken) / 1000);
      before = now;
      taken = at;
      onState(null);
    } catch (error) {
      before = null;
      onState(error);
    }
  };
  const again = async () => {
    await poll();
    setTimeout(again, PERIOD_MS);
  };
  again();
}
