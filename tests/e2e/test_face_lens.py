"""The page's lens, in a headless Chromium: what each layer expects behind the token under the pointer."""

import json
import math

import browser as chromium
import httpx2
import pytest
from conftest import serving
from test_face import LAST, STORY, answer, ask_again, browser, fill, say, visit  # noqa: F401

pytestmark = pytest.mark.skipif(chromium.find() is None,
                                reason="no Chromium here: 'tools/setup.sh test' says how to get one")


@pytest.fixture(scope="module")
def capturing():
    with serving("--capture-memory-mb", "16") as running:
        yield running


def table_at(page, index):
    """The lens at a token: for each point, its cells."""
    node = f"{LAST}.querySelectorAll('.tokens span')[{index}]"
    heading = f"`Expected behind ${{JSON.stringify({node}.textContent)}}`"
    page.wait(f"""{node}.dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}})) &&
                  {LAST}.querySelector('.quiet').textContent === {heading}""")
    return dict(page.eval(f"""[...{LAST}.querySelectorAll('table.lens tr')].map((row) =>
        [row.cells[0].textContent, [...row.cells].slice(1).map((cell) => cell.textContent)])"""))


def text_of(server, token):
    return httpx2.post(server.url + "/detokenize", json={"tokens": [token]}).json()["prompt"]


def test_each_layer_tells_what_it_expects(capturing, visit):
    page = visit(capturing)
    fill(page, "temperature", "0")
    fill(page, "max_tokens", "24")
    page.click("#lens-on")
    say(page, STORY)
    text = answer(page).split("\nPoint at")[0].strip()
    asked = {"model": "rudder-demo", "temperature": 0, "max_tokens": 24, "messages": [{"role": "user", "content": STORY}],
             "capture": {"response": {"lens": {"layers": "all", "top": 3}, "positions": "all_generated"}}}
    told = httpx2.post(capturing.url + "/v1/chat/completions", json=asked, timeout=60).json()
    assert text == told["choices"][0]["message"]["content"].strip()
    lens = told["capture_results"]["response"]["payload"]["lens"]
    pieces = page.eval(f"[...{LAST}.querySelectorAll('.tokens span')].map((node) => node.textContent)")
    for index in (0, 7):
        shown = table_at(page, index)
        assert list(shown) == list(lens)
        for point, read in lens.items():
            expected = [f"{json.dumps(text_of(capturing, token), ensure_ascii=False)} {100 * math.exp(logprob):.1f} %"
                        for token, logprob in zip(read["token_ids"][index], read["logprobs"][index])]
            assert [cell.rsplit(" ", 2)[0] for cell in shown[point]] == [cell.rsplit(" ", 2)[0] for cell in expected]
            assert [float(cell.rsplit(" ", 2)[1]) for cell in shown[point]] == pytest.approx(
                [float(cell.rsplit(" ", 2)[1]) for cell in expected], abs=0.11)
        # The last layer is the model itself, which took the likeliest token.
        assert shown[list(shown)[-1]][0].startswith(json.dumps(pieces[index + 1]))
    # Off again, the answer is text as before.
    page.click("#lens-on")
    ask_again(page)
    assert page.eval(f"{LAST}.querySelectorAll('.tokens').length") == 0


def test_a_server_that_captures_nothing_has_no_lens(server, visit):
    assert not visit(server).eval("document.getElementById('lens').checkVisibility()")
