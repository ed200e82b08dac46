"""The page at /, in a headless Chromium: chat, steering, pictures of the server, and what goes wrong."""

import contextlib
import json
import re
import shutil

import browser as chromium
import httpx2
import pytest
import score
from conftest import DEMO, MAX_TOKENS, PACED, long_request, run_rudder, serving, wait_for

MAX_PAGE_BYTES = 80_000
STORY = "Tell me a story about a boat."
TOPICS = ("kite", "lantern", "bicycle", "puzzle", "hat", "violin", "robot", "puppy", "owl", "garden", "farm")

pytestmark = pytest.mark.skipif(chromium.find() is None,
                                reason="no Chromium here: 'tools/setup.sh test' says how to get one")


@pytest.fixture(scope="module")
def browser():
    with chromium.running() as running:
        yield running


def train_mood(folder):
    """A module file that makes stories happy, or sad."""
    for kind in ("happy", "sad"):
        (folder / f"{kind}.txt").write_text("".join(f"Tell me a {kind} story about a {topic}.\n" for topic in TOPICS))
    done = run_rudder("vectors", "train", "--positive", folder / "happy.txt", "--negative", folder / "sad.txt", "--chat",
                      "--layers", "5", "--name", "mood", "--output", folder)
    assert done.returncode == 0, done.stderr
    return folder / "mood.safetensors"


@pytest.fixture(scope="module")
def mood(tmp_path_factory):
    return train_mood(tmp_path_factory.mktemp("mood"))


@pytest.fixture(scope="module")
def steered(mood):
    with serving("--enable-steering", "--steering-module", f"mood={mood}", "--capture-memory-mb", "16") as running:
        yield running


@pytest.fixture
def visit(browser):
    """visit(server) opens the page; `expected` are the errors that the test makes."""
    opened = []

    def visit(server, ready=True, expected=r"$^", size=(1280, 860), **options):
        page = browser.page()
        opened.append((page, server, expected))
        page.size(*size, **options)
        page.open(server.url + "/")
        if ready:
            page.wait("document.getElementById('status').textContent === 'ready'")
        return page

    yield visit
    for page, server, expected in opened:
        page.eval("1")  # what is still under way is noted
        page.close()
        unexpected = [error for error in page.errors if not re.search(expected, error)]
        assert not unexpected, unexpected
        assert all(address.startswith((server.url, "data:")) for address in page.requests), page.requests


def fill(page, name, value):
    page.eval(f"document.querySelector('[name={name}]').value = {json.dumps(value)}")


def say(page, text):
    page.click("#prompt")
    page.type(text)
    page.enter()


LAST_CSS = ".message.assistant:last-of-type"
LAST = f"document.querySelector('{LAST_CSS}')"


def answer(page):
    """Text of the last answer, once it is complete."""
    page.wait(f"{LAST}?.querySelector('.again') && document.getElementById('stop').hidden")
    return page.eval(f"{LAST}.querySelector('.body').innerText")


def ask_again(page):
    page.click(".again")
    return answer(page)


def test_it_is_small_and_guarded(server):
    page = httpx2.get(server.url + "/")
    files = re.findall(r'"(face/[\w.]+)"', page.text)
    files += ["face/" + name for name in ("api.js", "chat.js", "copies.js", "feature_view.js", "features.js", "grid.js",
                                          "heat.js", "lens_view.js", "markdown.js", "metrics.js", "pattern_view.js", "steering.js")]
    answers = [page, *(httpx2.get(f"{server.url}/{name}") for name in sorted(set(files)))]
    assert [each.status_code for each in answers] == [200] * len(answers)
    assert sum(len(each.content) for each in answers) < MAX_PAGE_BYTES
    for each in answers:
        policy = each.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    for wrong in ("/face/", "/face/..%2fface.css", "/face/nothing.js"):
        assert httpx2.get(server.url + wrong).status_code == 404


def test_chat_streams_and_remembers(paced, visit):
    page = visit(paced)
    page.eval(f"""window.lengths = new Set(); new MutationObserver(() => {{
        window.lengths.add({LAST}?.querySelector('.body').innerText.length);
      }}).observe(document.getElementById('log'), {{childList: true, subtree: true, characterData: true}})""")
    fill(page, "temperature", "0")
    say(page, "What is 27 + 58?")
    assert "85" in answer(page)
    say(page, STORY)
    assert score.mood_of(answer(page)) is not None
    assert page.eval("window.lengths.size") >= 5, "the answer came in pieces"
    assert page.eval("document.querySelectorAll('.message').length") == 4
    stats = page.eval(f"{LAST}.querySelector('footer').innerText")
    assert re.search(r"\d+ tokens · [\d,]+ tokens/s · first after [\d,]+ ms", stats), stats
    assert "cached" in stats  # the turn before was the prompt
    page.click("#new-chat")
    assert page.eval("document.querySelectorAll('.message').length") == 0
    assert page.eval("document.activeElement.id") == "prompt"


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop(paced, visit, how):
    page = visit(paced)

    def aborted():
        return paced.metrics()['rudder:request_success_total{model_name="rudder-demo",engine="0",finished_reason="abort"}']

    before = aborted()
    page.click("[name=ignore_eos]")
    fill(page, "max_tokens", str(MAX_TOKENS))
    fill(page, "temperature", "0")
    say(page, STORY)
    page.wait(f"{LAST}?.querySelector('.body').innerText.length > 40")
    page.click("#stop") if how == "button" else page.key("Escape", 27)
    assert len(answer(page)) > 40
    assert "stopped" in page.eval(f"{LAST}.querySelector('footer').innerText")
    wait_for(lambda: aborted() == before + 1, "the server ends the request")
    page.click("[name=ignore_eos]")
    say(page, "What is 27 + 58?")
    assert "85" in answer(page)


def test_a_seed_is_sent_and_what_is_empty_is_not(server, visit):
    page = visit(server)
    fill(page, "seed", "7")
    say(page, STORY)
    first = answer(page)
    assert ask_again(page) == first
    fill(page, "seed", "8")
    assert ask_again(page) != first


def test_the_slider_steers(steered, visit):
    page = visit(steered)
    fill(page, "temperature", "0")
    say(page, STORY)
    plain = answer(page)
    told = {}
    for key, code, presses in (("ArrowRight", 39, 16), ("ArrowLeft", 37, 32)):
        page.eval("document.getElementById('scale-mood').focus()")
        for _ in range(presses):
            page.key(key, code)
        shown = page.eval("document.querySelector('.slider output').textContent")
        told[shown] = ask_again(page)
        assert f"mood {shown[:-1]}" in page.eval(f"{LAST}.querySelector('footer').innerText")
    assert {scale: score.mood_of(text) for scale, text in told.items()} == {"+0.80": "happy", "−0.80": "sad"}
    page.eval("document.getElementById('scale-mood').focus()")
    for _ in range(16):
        page.key("ArrowRight", 39)
    assert page.eval("document.querySelector('.slider output').textContent") == "off"
    assert ask_again(page) == plain


def test_the_heat_map_shows_the_probe(steered, visit):
    page = visit(steered)
    fill(page, "temperature", "0")
    page.eval("document.getElementById('probe').selectedIndex = 1")
    say(page, STORY)
    text = answer(page).split("\n")[0]
    page.wait(f"{LAST}.querySelector('.legend')?.checkVisibility()")
    shown = page.eval(f"""[...{LAST}.querySelectorAll('.tokens span')].map(
        (node) => [node.textContent, node.title, getComputedStyle(node).backgroundColor])""")
    client = steered.client()
    told = client.chat.completions.create(
        model="rudder-demo", temperature=0, messages=[{"role": "user", "content": STORY}],
        extra_body={"return_token_ids": True, "capture": {"response": {
            "sites": {"resid_post": [5]}, "positions": "all_generated", "values": ["probes"],
            "probes": {"mood": "mood"}, "measure": "cosine"}}})
    assert text == told.choices[0].message.content
    values = told.capture_results["response"]["payload"]["probes"]["mood"]["resid_post.5"]
    measured = [float(title) for _, title, _ in shown if title]
    assert len(shown) > 30 and len(measured) >= len(shown) - 1
    assert measured == pytest.approx(values[:len(measured)], abs=1e-3)
    assert len({colour for _, title, colour in shown if title}) > 5


def test_the_pictures_move(paced, visit):
    page = visit(paced)
    lines = "[...document.querySelectorAll('#charts .line')].map((path) => path.getAttribute('d') ?? '')"
    page.wait(f"({lines})[0].split('L').length >= 3")
    before = page.eval(lines)
    labels = page.eval("[...document.querySelectorAll('#charts svg')].map((svg) => svg.getAttribute('aria-label'))")
    assert len(labels) == 4 and all(re.search(r": .*\d", label) for label in labels), labels
    paced.client().completions.create(model="rudder-demo", prompt=STORY * 8, max_tokens=1)  # its prefix is kept
    # What was shown stays known: hits of the last moment are gone a moment later.
    page.eval("globalThis.shown = []; new MutationObserver(() => shown.push(document.getElementById('charts').innerText))"
              ".observe(document.getElementById('charts'), {subtree: true, childList: true, characterData: true})")
    with contextlib.ExitStack() as load:
        for _ in range(4):
            load.enter_context(long_request(paced, STORY * 8))
        for said in (r"[1-9] running", r"[1-9][\d,.]* tokens\/s", r"[1-9][\d.]*% in use", r"[1-9][\d.]*% of prompts last"):
            page.wait(f"shown.some((text) => /{said}/.test(text))")
    after = page.eval(lines)
    assert all(a != b for a, b in zip(after, before) if b or a)


def test_a_key_is_asked_for_and_forgotten(visit):
    with serving("--api-key", "sesame") as guarded:
        page = visit(guarded, ready=False, expected="401")
        page.wait("document.getElementById('key-dialog').open")
        page.click("#key-cancel")
        page.wait("document.getElementById('status').textContent === 'locked'")
        page.click("#unlock")
        for key in ("wrong", "sesame"):
            page.wait("document.getElementById('key-dialog').open")
            page.click("#key")
            page.type(key)
            page.enter()
            if key == "wrong":
                page.wait("document.getElementById('key-wrong').checkVisibility()")
        page.wait("document.getElementById('status').textContent === 'ready'")
        fill(page, "temperature", "0")
        say(page, "What is 27 + 58?")
        assert "85" in answer(page)
        assert page.eval("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        assert not any("sesame" in address for address in page.requests)
        assert page.eval("document.getElementById('key').value") == ""
        page.open(guarded.url + "/?again")
        page.wait("document.getElementById('key-dialog').open")


def test_what_the_server_refuses_is_said(server, visit):
    page = visit(server, expected=" 400 ")
    fill(page, "max_tokens", "100000")
    say(page, STORY)
    answer(page)
    assert "max_tokens" in page.eval(f"{LAST}.querySelector('.error').textContent")
    assert page.eval("document.querySelector('[name=max_tokens]').ariaInvalid") == "true"
    fill(page, "max_tokens", "")
    assert score.mood_of(ask_again(page)) is not None
    assert page.eval("document.querySelector('[name=max_tokens]').ariaInvalid") is None


def test_a_full_server_and_a_server_that_goes(visit):
    with serving(*PACED, "--max-num-seqs", "1", "--max-num-queued-tokens", "24") as small:
        page = visit(small, expected=" 503 |ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
        with long_request(small, STORY * 2):
            wait_for(lambda: small.metric("rudder:num_requests_running") == 1, "one runs")
            with long_request(small, STORY * 2):
                wait_for(lambda: small.metric("rudder:num_requests_waiting") == 1, "one waits")
                say(page, STORY)
                answer(page)
                assert "Try again in" in page.eval(f"{LAST}.querySelector('.error').textContent")
        wait_for(lambda: small.metric("rudder:num_requests_running") == 0, "nobody is served")
        assert score.mood_of(ask_again(page)) is not None
        small.stop()
        page.wait("document.getElementById('status').textContent === 'The server cannot be reached.'")
        say(page, STORY)
        answer(page)
        assert "cannot be reached" in page.eval(f"{LAST}.querySelector('.error').textContent")


def test_a_model_without_a_chat_template(visit, tmp_path):
    model = tmp_path / "base"
    shutil.copytree(DEMO, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    with serving(model=model) as base:
        page = visit(base)
        assert not page.eval("document.getElementById('mode').checkVisibility()")
        assert not page.eval("document.getElementById('system-field').checkVisibility()")
        fill(page, "max_tokens", "20")
        fill(page, "temperature", "0")
        say(page, "Everyone in town knew ")
        first = answer(page)
        assert first
        assert any(address.endswith("/v1/completions") for address in page.requests)
        assert not any("chat" in address for address in page.requests if "/v1/" in address)


HOSTILE = """# Title <script>alert(1)</script>

<img src=x onerror=alert(2)> **bold** and *leaning* and `code <b>` and snake_case_name

- one
  1. inner [link](https://example.org/a?b=1) [bad](javascript:alert(3))
- two ![image](https://example.org/p.png)

| a | b |
|---|---|
| 1 | <iframe> |

> quoted

```html
<script>alert(4)</script>
```
"""


def test_markdown_makes_no_markup_of_the_models_text(server, visit):
    page = visit(server)
    shown = page.eval(f"""import('/face/markdown.js').then(({{MarkdownView}}) => {{
      const node = document.createElement('div');
      const view = new MarkdownView(node);
      const text = {json.dumps(HOSTILE)};
      for (let end = 1; end <= text.length; ++end) view.update(text.slice(0, end));  // as it streams
      const whole = document.createElement('div');
      new MarkdownView(whole).update(text);
      return {{same: whole.innerHTML === node.innerHTML, text: node.textContent, html: node.innerHTML,
               names: [...new Set([...node.querySelectorAll('*')].map((each) => each.localName))].sort(),
               links: [...node.querySelectorAll('a')].map((each) => each.href)}};
    }})""")
    assert shown["same"], shown["html"]
    assert shown["names"] == sorted(["h3", "p", "strong", "em", "code", "ul", "li", "ol", "a", "table", "thead", "tbody",
                                     "tr", "th", "td", "blockquote", "pre"]), shown["html"]
    assert shown["links"] == ["https://example.org/a?b=1", "https://example.org/p.png"]
    for text in ("<script>alert(1)</script>", "<img src=x onerror=alert(2)>", "<iframe>", "snake_case_name",
                 "[bad](javascript:alert(3))"):
        assert text in shown["text"]


def test_long_and_deep_text_does_not_hold_the_page_up(server, visit):
    page = visit(server)
    for text in ("*" * 40_000, "> " * 20_000, "[" * 20_000, "- " * 20_000, "`" * 20_001, "|" * 20_000 + "\n|-|\n", "_a" * 20_000,
                 "".join(" " * i + "- x\n" for i in range(200))):
        before = page.processor_seconds()
        page.eval(f"""import('/face/markdown.js').then(({{MarkdownView}}) => {{
          new MarkdownView(document.createElement('div')).update({json.dumps(text)});
        }})""")
        took = page.processor_seconds() - before
        assert took < 1.5, (text[:10], took)


CONTRAST = """(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const light = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255)
        .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const style = getComputedStyle(document.documentElement);
  const of = (name) => light(style.getPropertyValue(`--${name}`));
  const ratio = (a, b) => (Math.max(of(a), of(b)) + 0.05) / (Math.min(of(a), of(b)) + 0.05);
  return [['ink', 'paper'], ['ink', 'sheet'], ['quiet', 'paper'], ['quiet', 'sheet'], ['accent', 'paper'],
          ['bad', 'paper'], ['on-accent', 'accent']].map(([a, b]) => [a, b, ratio(a, b)]);
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_it_can_be_read_and_reached(steered, visit, dark):
    page = visit(steered, dark=dark, size=(360, 700), mobile=True)
    assert all(ratio >= 4.5 for _, _, ratio in page.eval(CONTRAST))
    for _ in range(2):  # with the panels closed, and open
        assert page.eval("document.documentElement.scrollWidth <= innerWidth")
        nameless = page.eval("""[...document.querySelectorAll('button, input, select, textarea')].filter(
            (node) => node.checkVisibility() && !node.labels?.length && !node.textContent.trim()).map((n) => n.outerHTML)""")
        assert not nameless
        page.click("#show-panels")
    assert not page.eval("document.getElementById('panels').checkVisibility()")
    page.click("#prompt")
    page.type(STORY)
    page.key("Tab", 9)
    assert page.eval("document.activeElement.id") == "send"
    page.key("Enter", 13, "\r")
    assert answer(page)
    assert page.eval("document.documentElement.scrollWidth <= innerWidth")
