"""The page's attention view, in a headless Chromium: what a head reads at the token under the pointer."""

import base64
import struct

import browser as chromium
import httpx2
import pytest
from conftest import serving
from test_face import LAST, STORY, answer, ask_again, browser, fill, say, visit  # noqa: F401

pytestmark = pytest.mark.skipif(chromium.find() is None,
                                reason="no Chromium here: 'tools/setup.sh test' says how to get one")
LAYER, HEAD = 3, 2


@pytest.fixture(scope="module")
def capturing():
    with serving("--capture-memory-mb", "16") as running:
        yield running


def set_number(page, name, value):
    page.eval(f"document.getElementById('{name}').value = '{value}'")


def test_a_token_tells_what_a_head_reads(capturing, visit):  # noqa: F811
    page = visit(capturing)
    fill(page, "temperature", "0")
    fill(page, "max_tokens", "12")
    set_number(page, "pattern-layer", LAYER)
    set_number(page, "pattern-head", HEAD)
    say(page, STORY)
    answer(page)
    asked = {"model": "rudder-demo", "temperature": 0, "max_tokens": 12, "messages": [{"role": "user", "content": STORY}],
             "capture": {"response": {"patterns": {"layers": LAYER, "heads": HEAD}, "positions": "all_generated"}}}
    told = httpx2.post(capturing.url + "/v1/chat/completions", json=asked, timeout=60).json()
    payload = told["capture_results"]["response"]["payload"]
    prompt = told["usage"]["prompt_tokens"]
    values = [value for value, in struct.iter_unpack("<f", base64.b64decode(payload["patterns"][str(LAYER)]["data"]))]
    rows, begin = [], 0
    for keys in payload["patterns"][str(LAYER)]["keys"]:
        rows.append(values[begin:begin + keys])
        begin += keys
    for index in (0, 6):
        node = f"{LAST}.querySelectorAll('.tokens span')[{index}]"
        page.wait(f"""{node}.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}})) &&
                      {LAST}.querySelector('.quiet').textContent.startsWith(JSON.stringify({node}.textContent))""")
        words = page.eval(f"{LAST}.querySelector('.quiet').textContent")
        shown = [float(part.split(" %")[0]) for part in words.split(" with ")[1:]]
        row = rows[index]
        assert shown == pytest.approx([100 * sum(row[:prompt]), 100 * row[-1]], abs=0.15)
        titles = page.eval(f"[...{LAST}.querySelectorAll('.tokens span')].map((node) => node.title)")
        assert [float(title) for title in titles[:index + 1]] == pytest.approx(row[prompt:], abs=0.002)
        assert not any(titles[index + 1:])
    # Without a layer the answer is text as before.
    set_number(page, "pattern-layer", "")
    ask_again(page)
    assert page.eval(f"{LAST}.querySelectorAll('.tokens').length") == 0


def test_a_head_that_is_not_there_is_refused_in_words(capturing, visit):  # noqa: F811
    page = visit(capturing, expected="400")
    set_number(page, "pattern-layer", LAYER)
    set_number(page, "pattern-head", 99)
    say(page, STORY)
    page.wait(f"{LAST}?.querySelector('.error')")
    assert "head 99" in page.eval(f"{LAST}.querySelector('.error').textContent")
