"""The page with a long chat, on a desktop and on a phone, and what is known of tokens without a pointer."""

import os
import pathlib

import browser as chromium
import pytest
from conftest import serving
from test_face import LAST, STORY, answer, browser, fill, say, visit  # noqa: F401

TURNS = 30
SCREENSHOTS = os.environ.get("RUDDER_SCREENSHOTS")  # a folder to leave pictures in

pytestmark = pytest.mark.skipif(chromium.find() is None,
                                reason="no Chromium here: 'tools/setup.sh test' says how to get one")


@pytest.fixture(scope="module")
def capturing():
    with serving("--capture-memory-mb", "16", "--max-model-len", "2048") as running:
        yield running


def picture(page, name):
    if SCREENSHOTS:
        page.screenshot(pathlib.Path(SCREENSHOTS) / f"{name}.png")


def box(page, selector):
    return page.eval(f"(({{top, bottom, left, right}}) => ({{top, bottom, left, right}}))"
                     f"(document.querySelector('{selector}').getBoundingClientRect())")


def expect_in_window(page, width, height):
    """The page does not scroll, and the composer is seen whole."""
    assert page.eval("document.scrollingElement.scrollTop") == 0
    for side, size in (("Width", width), ("Height", height)):
        assert page.eval(f"document.scrollingElement.scroll{side}") <= size
        assert page.eval(f"document.body.scroll{side}") <= size
    for selector in ("#composer", "#prompt", "#send", "header", "#new-chat"):
        seen = box(page, selector)
        assert 0 <= seen["top"] < seen["bottom"] <= height and 0 <= seen["left"] < seen["right"] <= width, (selector, seen)


@pytest.mark.parametrize("name, width, height, mobile", [("desktop", 1280, 900, False), ("phone", 390, 844, True)])
def test_a_chat_of_thirty_turns_leaves_the_composer_where_it_is(server, visit, name, width, height, mobile):  # noqa: F811
    page = visit(server, size=(width, height), mobile=mobile)
    fill(page, "max_tokens", "12")
    fill(page, "temperature", "0")
    before = box(page, "#composer")
    for turn in range(TURNS):
        say(page, f"{turn}: {STORY}")
        answer(page)
    assert page.eval("document.querySelectorAll('.message').length") == 2 * TURNS
    expect_in_window(page, width, height)
    assert box(page, "#composer") == pytest.approx(before, abs=1)
    # The conversation scrolls in its own place, and shows its end.
    log = page.eval("(({scrollTop, clientHeight, scrollHeight}) => [scrollTop, clientHeight, scrollHeight])"
                    "(document.getElementById('log'))")
    assert log[1] < log[2] / 2 and log[0] + log[1] > log[2] - 120, log
    picture(page, f"long-{name}")
    page.eval("document.getElementById('log').scrollTop = 0")
    page.eval("window.scrollTo(0, 500)")
    expect_in_window(page, width, height)
    if mobile:
        page.click("#show-panels")
        page.wait("document.getElementById('panels').checkVisibility()")
        assert page.eval("document.scrollingElement.scrollWidth") <= width
        picture(page, f"panels-{name}")


def set_number(page, name, value):
    page.eval(f"document.getElementById('{name}').value = '{value}'")


def focused(page):
    """Index of the token that has the focus, and what is told of it."""
    return page.eval(f"""[[...{LAST}.querySelectorAll('.tokens span')].indexOf(document.activeElement),
                          {LAST}.querySelector('[role=status]').textContent]""")


TELLS = {"lens": "Expected behind", "pattern": "reads the prompt with"}


@pytest.mark.parametrize("reader", TELLS)
def test_tokens_are_read_with_keys(capturing, visit, reader):  # noqa: F811
    page = visit(capturing)
    fill(page, "max_tokens", "10")
    fill(page, "temperature", "0")
    if reader == "lens":
        page.click("#lens-on")
    else:
        set_number(page, "pattern-layer", 2)
    say(page, STORY)
    answer(page)
    count = page.eval(f"{LAST}.querySelectorAll('.tokens span').length")
    assert page.eval(f"{LAST}.querySelectorAll('.tokens [tabindex=\"0\"]').length") == 1, "one tab stop an answer"
    page.eval("document.getElementById('log').focus()")
    page.key("Tab", 9)
    texts = []
    for key, code, at in (("ArrowRight", 39, 1), ("ArrowRight", 39, 2), ("ArrowLeft", 37, 1), ("Home", 36, 0)):
        page.key(key, code)
        page.wait(f"{LAST}.querySelector('[role=status]').textContent.includes('{TELLS[reader]}')")
        index, told = focused(page)
        assert index == at
        texts.append(told)
    page.key("End", 35)
    assert focused(page)[0] == count - 1
    page.key("ArrowRight", 39)
    assert focused(page)[0] == count - 1, "there is nothing behind the last"
    assert page.eval(f"{LAST}.querySelectorAll('.tokens [tabindex=\"0\"]').length") == 1


def test_what_is_not_shown_beside_another_reader_is_said(capturing, visit):  # noqa: F811
    page = visit(capturing)
    fill(page, "max_tokens", "6")
    page.click("#lens-on")
    set_number(page, "pattern-layer", 1)
    say(page, STORY)
    answer(page)
    assert "Not shown: the lens" in page.eval(f"{LAST}.querySelector('.unread').textContent")
    set_number(page, "pattern-layer", "")
    page.click(".again")
    answer(page)
    assert page.eval(f"{LAST}.querySelector('.unread')") is None


def test_the_api_is_shown(server, visit, browser):  # noqa: F811
    page = visit(server)
    page.open(server.url + "/docs")
    page.wait("document.querySelectorAll('.operation').length > 30")
    picture(page, "docs")
    page.click("#find")
    page.type("chat/completions")
    shown = "[...document.querySelectorAll('.operation')].filter((each) => !each.hidden).map((each) => each.id)"
    assert "post /v1/chat/completions" in page.eval(shown) and len(page.eval(shown)) < 10
    page.click("[id='post /v1/chat/completions'] > summary")
    page.wait("document.querySelectorAll('[id=\"post /v1/chat/completions\"] li').length > 40")
    told = page.eval("document.querySelector('[id=\"post /v1/chat/completions\"]').innerText")
    for word in ("temperature", "number", "messages", "required", "Answer 200", "example"):
        assert word in told, word
    page.size(390, 844, mobile=True)
    assert page.eval("document.scrollingElement.scrollWidth") <= 390
    picture(page, "docs-phone")
