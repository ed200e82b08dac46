"""A field that a route does not know is refused by its path, or named in the header: over every POST route of /openapi.json, in the
body and in each of its objects whose fields the document lists."""

import contextlib
import json
import shutil

import httpx2
import pytest

from conftest import DEMO, ROOT, serving
from dictionary import write_dictionary
from test_schema_bodies import BASES, GENERATING, RANKING, Schemas

UNKNOWN = "no_such_field"
ADAPTERS = ROOT / "tests" / "adapters"
# Bodies that are done: what is refused for something else says nothing of the field.
DONE = BASES | RANKING | GENERATING | {
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": str(ADAPTERS / "tone")}, "/v1/unload_lora_adapter": {"lora_name": "a"},
    "/v1/weights/update": {"path": "same"}, "/v1/steering/modules": {"name": "m", "vectors": {"resid_post": {"3": [0.5] * 256}}},
    "/v1/steering/modules/register": {"name": "n", "vectors": {"resid_post": {"3": [0.5] * 256}}},
    "/v1/steering/modules/unregister": {"name": "m"}, "/v1/steering/dictionaries": {"name": "d", "path": "sae", "site": "resid_post.3"},
    "/v1/steering/features/encode": {"dictionary": "d", "rows": [[0.5] * 256]}, "/v1/steering/set": {"steering": [{"name": "n"}]},
}
# Each makes what the next one needs; the others come behind them in any order.
ORDER = ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/steering/modules", "/v1/steering/modules/register",
         "/v1/steering/modules/unregister", "/v1/steering/dictionaries", "/v1/steering/features/encode", "/v1/steering/set",
         "/v1/steering/clear"]
OF_REST = ["/v1/weights/update", "/sleep", "/wake_up", "/pause", "/resume"]  # a server with dictionaries does not rest
PROBES = {"/ping"}  # answered whatever is sent, as /health: no JSON is read


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Everything is on that a route may need, but what the model rests for."""
    folder = tmp_path_factory.mktemp("unknown")
    rows = [[float(i == j) for j in range(256)] for i in range(4)]
    write_dictionary(folder / "sae", "resid_post.3", rows, rows)
    with serving("--device", "cpu", "--enable-lora", "--max-lora-rank", "8", "--lora-root", str(ADAPTERS), "--enable-steering",
                 "--capture-memory-mb", "8", "--dictionary-root", str(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def resting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    shutil.copytree(DEMO, folder / "same")
    with serving("--device", "cpu", "--enable-sleep-mode", "--weights-root", str(folder)) as server:
        yield server


@pytest.fixture(scope="module")
def ranked():
    with serving(model=ROOT / "tests" / "rerankers" / "Qwen3-Reranker-tiny") as server:
        yield server


def post(server, path, body):
    return httpx2.post(server.url + path, content=json.dumps(body), headers={"content-type": "application/json"}, timeout=60)


def path_of(server, path):
    """Of a route with an id: of a response that runs."""
    if "{" not in path:
        return path
    body = {"input": "hi", "background": True, "max_output_tokens": 1500, "ignore_eos": True}
    return path.replace("{id}", post(server, "/v1/responses", body).json()["id"])


def is_told(answer, field):
    """Refused there, or named; Anthropic's errors have no place for a path but their text."""
    if answer.status_code == 400:
        error = answer.json()["error"]
        return (error.get("param") or "").startswith(field) or field in error["message"]
    return answer.status_code < 300 and field in answer.headers.get("x-rudder-ignored-fields", "").split(", ")


def routes_of(server):
    document = httpx2.get(server.url + "/openapi.json").json()
    return document, [path for path, item in document["paths"].items() if "post" in item and path not in PROBES]


def inner_objects(schemas, path):
    """(name, an object with its required fields) of each field whose fields the document lists."""
    with contextlib.suppress(KeyError):
        for name, schema in schemas.body(path).get("properties", {}).items():
            for form in schemas.forms(schema):
                if form.get("type") == "object" and form.get("properties") and not isinstance(form.get("additionalProperties"), dict):
                    yield name, schemas.least(form)


def test_fields_that_a_route_does_not_know_are_refused_or_named(whole, resting, ranked):
    _, paths = routes_of(whole)
    assert set(ORDER + OF_REST) <= set(paths) and set(DONE) <= set(paths)
    wrong = {}
    for path in [*ORDER, *OF_REST, *sorted(set(paths) - set(ORDER + OF_REST))]:
        server = ranked if path in RANKING else resting if path in OF_REST else whole
        answer = post(server, path_of(server, path), {**DONE.get(path, {}), UNKNOWN: 1})
        if not is_told(answer, UNKNOWN):
            wrong[path] = (answer.status_code, answer.headers.get("x-rudder-ignored-fields"), answer.text[:200])
        if answer.status_code == 400 and path in ORDER:
            done = post(server, path, DONE.get(path, {}))
            assert done.status_code == 200, (path, done.text)
    assert not wrong, "\n".join(f"{path}: {told}" for path, told in wrong.items())


def test_fields_in_objects_are_refused_or_named(whole, ranked):
    document, paths = routes_of(whole)
    schemas = Schemas(document)
    wrong, seen = {}, 0
    for path in sorted(paths):
        server = ranked if path in RANKING else whole
        for name, least in inner_objects(schemas, path):
            if least.get("type") == "structural_tag" and path.endswith("/render"):
                continue  # the compiler reads it, which a render does not ask
            seen += 1
            answer = post(server, path_of(server, path), {**DONE.get(path, {}), name: {**least, UNKNOWN: 1}})
            if not is_told(answer, f"{name}.{UNKNOWN}") and answer.status_code < 400:
                wrong[path, name] = (answer.headers.get("x-rudder-ignored-fields"), answer.text[:150])
    assert seen > 20
    assert not wrong, "\n".join(f"{where}: {told}" for where, told in wrong.items())


@pytest.mark.parametrize("path", ["/pause?mdoe=keep", "/resume", "/sleep?lvel=2", "/wake_up?tag=weights"])
def test_words_of_a_query_are_named(resting, path):
    answer = httpx2.post(resting.url + path, timeout=60)
    word = path.partition("?")[2].partition("=")[0]
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-rudder-ignored-fields", "") == word
