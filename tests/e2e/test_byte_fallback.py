"""A tokenizer with byte fallback, as Llama 2 and Mistral have: a newline is the token of a byte, and a chat prompt ends in one."""

import re

import httpx2
import pytest
from conftest import run_rudder, serving

LETTERS = "abcdefghij"


@pytest.fixture(scope="module")
def fallback_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fallback") / "model"
    made = run_rudder("make-model", "--like", "qwen2.5-0.5b", "--layers", "1", "--seed", "5", "--tokenizer",
                      "bytefallback", folder)
    assert made.returncode == 0, made.stderr
    with serving("--max-model-len", "512", model=folder) as running:
        yield running


def tokenize(server, **fields):
    answer = httpx2.post(server.url + "/tokenize", json=fields | {"return_token_strs": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def letter_ids(server):
    """Ids of single letters: what precedes them is the blank that begins a text."""
    ids = [tokenize(server, prompt="." + letter, add_special_tokens=False)["tokens"][-1] for letter in LETTERS]
    assert len(set(ids)) == len(LETTERS)
    return ids


def ask(server, content="Hello.", **fields):
    fields = {"max_tokens": 12, "temperature": 1, "seed": 3, **fields}
    client = server.client()
    name = client.models.list().data[0].id
    return client.chat.completions.create(model=name, messages=[{"role": "user", "content": content}], **fields)


def test_the_prompt_ends_in_a_byte_token(fallback_server):
    prompt = tokenize(fallback_server, messages=[{"role": "user", "content": "Hello."}])
    assert prompt["token_strs"][-1] == "<0x0A>"


def test_an_answer_does_not_begin_with_the_prompts_newline(fallback_server):
    only = {"allowed_token_ids": letter_ids(fallback_server)}
    for stop in (None, ["\n"]):
        choice = ask(fallback_server, stop=stop, extra_body=only).choices[0]
        assert re.fullmatch("[a-j]{12}", choice.message.content), choice.message.content
        assert choice.finish_reason == "length"
    chunks = ask(fallback_server, stream=True, extra_body=only)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content


@pytest.mark.parametrize("form, pattern", [
    ({"choice": ["yes", "no"]}, "yes|no"),
    ({"regex": "[a-c]{3}-\\d{2,4}"}, "[a-c]{3}-[0-9]{2,4}"),
    ({"grammar": 'root ::= "x" "\\n"'}, "x\n"),
    ({"choice": ["\u00e9t\u00e9"]}, "\u00e9t\u00e9"),
])
def test_forms_hold_for_the_answer_alone(fallback_server, form, pattern):
    for seed in range(3):
        choice = ask(fallback_server, seed=seed, extra_body={"structured_outputs": form}).choices[0]
        assert choice.finish_reason == "stop"
        assert re.fullmatch(pattern, choice.message.content), choice.message.content


def test_an_echoed_prompt_and_its_answer_are_one_text(fallback_server):
    client = fallback_server.client()
    name = client.models.list().data[0].id
    done = client.completions.create(model=name, prompt="a b\n", max_tokens=5, echo=True,
                                     extra_body={"allowed_token_ids": letter_ids(fallback_server)})
    assert re.fullmatch("a b\n[a-j]{5}", done.choices[0].text), done.choices[0].text
