"""The page's panel of features and its grid of hits, in a headless Chromium."""

import contextlib
import io
import json
import shlex

import browser as chromium
import httpx2
import pytest
from conftest import ROOT, serving
from test_capture import rows_of
from test_face import LAST, LAST_CSS, STORY, TOPICS, answer, ask_again, browser, fill, mood, say, visit  # noqa: F401

pytestmark = pytest.mark.skipif(chromium.find() is None,
                                reason="no Chromium here: 'tools/setup.sh test' says how to get one")


@pytest.fixture(scope="module")
def with_features(mood):
    dictionary = ROOT / "models" / "demo" / "dictionaries" / "sae"
    with serving("--enable-steering", "--steering-module", f"mood={mood}", "--dictionary", f"demo={dictionary}",
                 "--capture-memory-mb", "16") as running:
        yield running


def read_by_dictionary(page):
    fill(page, "temperature", "0")
    page.eval("document.getElementById('dictionary').selectedIndex = 1")
    say(page, STORY)
    text = answer(page).split("\n")[0]
    page.wait(f"[...{LAST}.querySelectorAll('.tokens span')].length > 30")
    return text


def point_at(page, index):
    """The feature buttons of a token."""
    node = f"{LAST}.querySelectorAll('.tokens span')[{index}]"
    page.wait(f"""{node}.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}})) &&
                  {LAST}.querySelectorAll('.told button').length > 0""")
    return page.eval(f"[...{LAST}.querySelectorAll('.told button')].map((each) => each.textContent)")


def test_tokens_show_their_features(with_features, visit):
    page = visit(with_features)
    text = read_by_dictionary(page)
    shown = point_at(page, 20)
    client = with_features.client()
    told = client.chat.completions.create(
        model="rudder-demo", temperature=0, messages=[{"role": "user", "content": STORY}],
        extra_body={"capture": {"response": {"sites": {"resid_post": "all"}, "positions": "all_generated", "dtype": "float32"}}})
    assert text == told.choices[0].message.content
    listed = httpx2.get(with_features.url + "/v1/steering/dictionaries").json()["dictionaries"][0]["layers"][0]
    layer = int(listed["read"].split(".")[1])
    rows = rows_of(told.capture_results["response"]["payload"]["rows"]["resid_post"])[layer::8]
    top = httpx2.post(with_features.url + "/v1/steering/features/encode",
                      json={"dictionary": "demo", "rows": [list(rows[20])], "top": 8}).json()["rows"][0]
    assert [int(each.split(":")[0]) for each in shown] == top["features"]
    assert [float(each.split(":")[1]) for each in shown] == pytest.approx(top["values"], rel=1e-2)
    # One feature as a heat map.
    feature = top["features"][0]
    values = [row["values"][0] for row in httpx2.post(
        with_features.url + "/v1/steering/features/encode",
        json={"dictionary": "demo", "rows": [list(row) for row in rows], "features": [feature]}).json()["rows"]]
    page.eval(f"""(() => {{ const input = document.getElementById('feature-colour'); input.value = {feature};
                   input.dispatchEvent(new Event('change')); }})()""")
    page.wait(f"""{LAST}.querySelector('.legend').checkVisibility() &&
                  [...{LAST}.querySelectorAll('.tokens span')].filter((node) => node.title === '').length <= 1""")
    titles = page.eval(f"[...{LAST}.querySelectorAll('.tokens span')].map((node) => node.title)")
    measured = [float(title) for title in titles if title]
    assert len(measured) >= len(titles) - 1
    assert measured == pytest.approx(values[:len(measured)], abs=0.02, rel=1e-3)


def test_a_pinned_feature_steers_and_is_compared(with_features, visit):
    page = visit(with_features)
    plain = read_by_dictionary(page)
    feature = point_at(page, 3)[0].split(":")[0]
    page.click(f"{LAST_CSS} .told button")
    page.wait("document.querySelectorAll('#pinned .slider').length === 1")
    assert page.eval("document.querySelector('#pinned output').textContent") == "off"
    assert ask_again(page).split("\n")[0] == plain
    page.eval("""(() => { const input = document.querySelector('#pinned input'); input.value = input.max;
                  input.dispatchEvent(new Event('input')); })()""")
    value = page.eval("document.querySelector('#pinned input').value")
    steered = ask_again(page).split("\n")[0]
    assert steered != plain
    assert f"feature {feature} add {value}" in page.eval(f"{LAST}.querySelector('footer').innerText")
    request = {"op": "feature", "dictionary": "demo", "feature": int(feature), "kind": "add", "value": float(value)}
    told = with_features.client().chat.completions.create(
        model="rudder-demo", temperature=0, messages=[{"role": "user", "content": STORY}], extra_body={"steering": request})
    assert steered == told.choices[0].message.content
    # The request as text: what it says runs and says the same.
    page.eval("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    buttons = f"[...{LAST}.querySelectorAll('footer .copy')]"
    page.eval(f"{buttons}.find((each) => each.textContent === 'Python').click()")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(page.eval("window.copied"), {})
    assert steered in output.getvalue()
    page.eval(f"{buttons}.find((each) => each.textContent === 'curl').click()")
    command = shlex.split(page.eval("window.copied"))
    assert command[:2] == ["curl", "-s"] and command[2] == with_features.url + "/v1/chat/completions"
    body = json.loads(command[command.index("-d") + 1])
    assert body["steering"][0]["feature"] == int(feature)
    assert httpx2.post(command[2], json=body, timeout=60).json()["choices"][0]["message"]["content"] == steered
    # Side by side.
    page.click(f"{LAST_CSS} .compare")
    page.wait(f"{LAST}.querySelector('.columns') && !{LAST}.querySelector('.columns .waiting')")
    columns = page.eval(f"[...{LAST}.querySelectorAll('.columns .body')].map((each) => each.innerText)")
    assert columns[0].strip() == plain and columns[1].startswith(steered)
    page.click("#pinned button")
    assert page.eval("document.querySelectorAll('#pinned .slider').length") == 0


def test_the_grid_tells_hits_from_what_is_steered_apart(with_features, visit):
    page = visit(with_features)
    fill(page, "temperature", "0")
    fill(page, "max_tokens", "4")
    long = "Tell me a story about a boat and " + ", ".join(f"a {topic}" for topic in TOPICS) + "."

    def rows():
        return page.eval("[...document.querySelectorAll('.hits')].map((row) => [...row.children].map((cell) => cell.className))")

    def ask(text=None):
        if text:
            say(page, text)
            answer(page)
        else:
            ask_again(page)
        return rows()[-1]

    assert set(ask(long)) == {"computed"}
    second = ask()
    assert second[:-1] == ["hit"] * (len(second) - 1)
    page.eval("document.getElementById('scale-mood').focus()")
    page.key("ArrowRight", 39)
    third = ask()
    assert third[:-1] == ["apart"] * (len(third) - 1)
    assert ask()[:-1] == ["hit"] * (len(third) - 1)
    labels = page.eval("[...document.querySelectorAll('.hits')].map((row) => row.ariaLabel)")
    assert len(labels) == 4 and "mood +0.05" in labels[2] and f"{third.count('apart')} steered apart" in labels[2]
    page.click("#new-chat")
    assert rows() == []
