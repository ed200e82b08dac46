"""What went wrong in other inference servers, by class of advisory, asked of this one.

SECURITY.md has the table of classes and of their tests. Some classes are held by unit tests; the rest are here, named by
their number in the table.
"""

import asyncio
import concurrent.futures
import functools
import itertools
import json
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse

import httpx2
import pytest
from conftest import BINARY, DEMO, ROOT, growth_bound, is_instrumented, run_rudder, serving
from invalid.client import Connection, request_bytes
from invalid.raw import Raw, dump, nested
from invalid.run import INSIDE

ANSWER_S = 20.0  # the machine may be busy, and the binary instrumented
CANARY = {"prompt": "Once upon a time", "max_tokens": 300, "seed": 5, "ignore_eos": True, "return_token_ids": True}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def url():
    with serving("--disable-access-log", "--log-level", "error", "--kv-cache-memory-bytes", "64M") as server:
        yield server.url


def post(url, path, body, **options):
    return httpx2.post(url + path, content=dump(body), timeout=ANSWER_S, **({"headers": {"content-type": "application/json"}} | options))


def canary(url):
    return httpx2.post(url + "/v1/completions", json=CANARY, timeout=120).json()["choices"][0]["token_ids"]


def metrics(url):
    lines = httpx2.get(url + "/metrics", timeout=ANSWER_S).text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and line[0] != "#"}


def metric(url, name):
    found = [value for key, value in metrics(url).items() if key.split("{")[0] == name]
    assert found, f"/metrics has no {name}"
    return sum(found)


def beside_a_canary(url, attack):
    """What `attack()` returns, while a request of someone else gets the tokens that it gets alone."""
    alone = canary(url)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(canary, url)
        result = attack()
        assert other.result() == alone
    return result


AT_FAULT = [
    {"structured_outputs": {"regex": "("}}, {"structured_outputs": {"json": {"type": "wat"}}}, {"structured_outputs": {"grammar": "x"}},
    {"structured_outputs": {"choice": []}}, {"structured_outputs": {"structural_tag": "{"}}, {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    {"structured_outputs": {"json": "{"}}, {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}}},
    {"cache_salt": ""}, {"cache_salt": 5}, {"cache_salt": "s" * 257}, {"cache_salt": {"a": 1}}, {"min_tokens": 9, "max_tokens": 2},
    {"logprobs": 129}, {"prompt_logprobs": 2**31}, {"prompt_logprobs": -2}, {"allowed_token_ids": [10**9]}, {"allowed_token_ids": []},
    {"logit_bias": {"99999999": 1}}, {"logit_bias": {"5": Raw(b"1e400")}}, {"stop_token_ids": [-1]}, {"prompt": [-1]}, {"prompt": [10**9]},
    {"prompt": []}, {"prompt": [[]]}, {"repetition_penalty": 0}, {"presence_penalty": Raw(b"NaN")}, {"bad_words": [""]},
    {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [[-1]]}}, {"prompt_embeds": "gAN9cQAu"},
    {"n": 0}, {"n": -1}, {"best_of": 2, "n": 1}, {"stop": [""]}, {"priority": 2**40}]


def test_s1_a_request_at_fault_ends_itself_alone(url):
    started = metric(url, "process_start_time_seconds")

    def attack():
        for fault in AT_FAULT:
            answer = post(url, "/v1/completions", {"prompt": "a", "max_tokens": 2} | fault)
            assert answer.status_code == 400, (fault, answer.text)
            error = answer.json()["error"]
            assert error["message"] and (error["code"] == "invalid_json" or error["param"]), (fault, error)

    beside_a_canary(url, attack)
    assert metric(url, "process_start_time_seconds") == started


NUMBERS = ("n", "best_of", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs", "priority", "truncate_prompt_tokens",
           "thinking_token_budget", "sse_ping_interval", "temperature", "top_p", "frequency_penalty", "repetition_penalty")


def test_s2_a_number_is_judged_before_anything_is_spent_on_it(url):
    values = [2**k for k in range(20, 64, 3)] + [Raw(b"1e308"), Raw(b"1e19"), 2**64, -(2**63)]
    before = metrics(url)
    asked = list(itertools.product(NUMBERS, values))
    with httpx2.Client(timeout=ANSWER_S) as client:
        for name, value in asked:
            body = {"prompt": "a", "max_tokens": 1, name: value}
            answer = client.post(url + "/v1/completions", content=dump(body), headers={"content-type": "application/json"})
            assert answer.status_code in (200, 400), (name, value, answer.text)
    after = metrics(url)
    spent = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    assert spent / len(asked) < 0.2  # a whole answer of one token among them, sanitizers included
    grown = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    assert grown < growth_bound()


MANY = 200_000
LISTS = {
    "prompt": ("/v1/completions", ["a"] * MANY), "prompt of ids": ("/v1/completions", [5] * MANY),
    "prompt of lists": ("/v1/completions", [[5]] * MANY), "stop": ("/v1/completions", ["x"] * MANY),
    "stop_token_ids": ("/v1/completions", [7] * MANY), "bad_words": ("/v1/completions", ["x"] * MANY),
    "logit_bias": ("/v1/completions", {str(i): 1 for i in range(MANY)}), "allowed_token_ids": ("/v1/completions", [5] * MANY),
    "structured_outputs": ("/v1/completions", {"choice": [str(i) for i in range(MANY)]}), "metadata": ("/v1/completions", {str(i): "a" for i in range(MANY)}),
    "messages": ("/v1/chat/completions", [{"role": "user", "content": "a"}] * MANY),
    "messages of parts": ("/v1/chat/completions", [{"role": "user", "content": [{"type": "text", "text": "a"}] * MANY}]),
    "tools": ("/v1/chat/completions", [{"type": "function", "function": {"name": f"f{i}"}} for i in range(MANY // 4)]),
    "documents": ("/v1/chat/completions", [{"text": "a"}] * MANY), "input": ("/v1/embeddings", ["a"] * MANY), "input of items": (
        "/v1/responses", [{"role": "user", "content": "a"}] * MANY), "tokens": ("/detokenize", [5] * MANY)}


@pytest.mark.parametrize("name", LISTS)
def test_s2_a_list_is_judged_before_anything_is_spent_on_it(url, name):
    path, value = LISTS[name]
    field = name.split(" ")[0]
    body = dump((CHAT if "chat" in path else {"prompt": "a", "max_tokens": 2} if path == "/v1/completions" else {}) | {field: value})
    before = metrics(url)
    answer = httpx2.post(url + path, content=body, headers={"content-type": "application/json"}, timeout=3 * ANSWER_S)
    after = metrics(url)
    assert answer.status_code in (200, 400), answer.text[:300]
    assert len(answer.content) < 10 * len(body) + (64 << 10)
    assert after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"] < (20 if is_instrumented() else 3)
    grown = after["process_resident_memory_bytes"] - before["process_resident_memory_bytes"]
    assert grown < growth_bound() + 10 * len(body)


def test_s2_metrics_do_not_grow_with_what_is_sent(url):
    def names():
        return {re.sub(r'le="[^"]*"', "", key) for key in metrics(url)}

    async def odd_requests(begin, count):
        connection = Connection(int(url.rsplit(":", 1)[1]))
        for i in range(begin, begin + count):
            await connection.ask(request_bytes(f"METHOD{i}", "/version"), "GET")
            await connection.ask(request_bytes("GET", f"/v1/path{i}"), "GET")
            body = json.dumps({"model": f"model{i}", "prompt": "a", "max_tokens": 1, "user": f"user{i}"}).encode()
            await connection.ask(request_bytes("POST", "/v1/completions", body))
        connection.close()

    asyncio.run(odd_requests(0, 1))  # what the first of a kind adds
    before = names()
    asyncio.run(odd_requests(1, 150))
    assert names() == before


# A path as clients spell it, and in ways that another reader of paths takes for the same.
SPELLINGS = (
    lambda path: path, lambda path: path + "/", lambda path: "/" + path, lambda path: path.replace("/v1", "/v1/../v1"),
    lambda path: path.replace("/", "/./", 1), lambda path: path + ";x", lambda path: path + "%2f", lambda path: path.upper(),
    lambda path: path.replace("s", "%73", 1), lambda path: "http://localhost" + path, lambda path: path + "?a=/health",
    lambda path: "/health/.." + path, lambda path: path + "%00", lambda path: path.replace("/", "\\", 1))
PUBLIC = {"/health", "/readyz", "/ping", "/livez", "/version", "/openapi.json", "/docs", "/", "/v1/health"}


def test_s5_no_spelling_of_a_path_goes_round_the_key():
    async def ask_all(port, operations):
        connection, reached = Connection(port), []
        for method, path in operations:
            path = re.sub(r"\{\w+\}", "x", path)
            for spelling, key in itertools.product(SPELLINGS, (None, "Bearer ", "Bearer secre", "Bearer secret2", "Basic secret")):
                body = b"{}" if method == "POST" else None
                data = request_bytes(method, spelling(path), body, [("Authorization", key)])
                answer = await connection.ask(data, method)
                if answer.status < 400:
                    reached.append((method, spelling(path), key))
            for other in ("PUT", "PATCH", "DELETE", "HEAD", "TRACE", "post", "GET", "POST"):
                answer = await connection.ask(request_bytes(other, path, None if other in ("GET", "HEAD") else b"{}"), other)
                if answer.status < 400:
                    reached.append((other, path, None))
        connection.close()
        return reached

    with serving("--api-key", "secret", "--enable-steering", "--disable-access-log", "--kv-cache-memory-bytes", "16M") as server:
        paths = httpx2.get(server.url + "/openapi.json").json()["paths"]
        operations = [(method.upper(), path) for path, item in paths.items() for method in item
                      if method in ("get", "post", "delete") and path not in PUBLIC]
        assert len(operations) > 25
        reached = asyncio.run(ask_all(int(server.url.rsplit(":", 1)[1]), operations))
        assert not reached
        good = {"Authorization": "Bearer secret"}
        assert httpx2.get(server.url + "/v1/models", headers=good).status_code == 200


def libraries():
    return subprocess.run(["ldd", str(BINARY)], capture_output=True, text=True, check=True).stdout


def test_s6_nothing_is_unpickled(url, tmp_path):
    assert "python" not in libraries()
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    done = run_rudder("info", folder)
    assert done.returncode != 0 and "safetensors" in done.stderr
    embeds = post(url, "/v1/completions", {"prompt_embeds": "gAN9cQAu", "prompt": "a", "max_tokens": 1})
    assert embeds.status_code == 400 and embeds.json()["error"]["param"] == "prompt_embeds"


def test_s7_a_models_folder_runs_nothing(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder)
    (folder / "modeling_evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    for change in ({"auto_map": {"AutoModelForCausalLM": "modeling_evil.Model"}}, {"auto_map": "--modeling_evil.Model"}):
        (folder / "config.json").write_text(json.dumps(config | change))
        run_rudder("info", folder)  # taken or refused
        assert not (tmp_path / "ran").exists()
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(folder / "model.safetensors", tmp_path / "outside.safetensors")
    (folder / "model.safetensors").unlink()
    for name in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "sub/../../outside.safetensors"):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        done = run_rudder("info", folder)
        assert done.returncode != 0 and "is not the name of a safetensors file" in done.stderr, done.stderr


NAMES = ("../../etc/passwd", "/etc/passwd", "..%2f..%2fetc", "$(touch pwned)", "`id`", "a\u0000b", "rudder-demo/../rudder-demo", "file:///etc/passwd",
         "sha256:../../../x", "a" * 5000)


def test_s7_names_of_clients_are_no_paths(url):
    """Nor are they commands: a name is one of the list, or there is none of that name."""
    quote = functools.partial(urllib.parse.quote, safe="")
    for name in NAMES:
        answers = [post(url, "/v1/completions", {"model": name, "prompt": "a", "max_tokens": 1})]
        answers += [httpx2.request(method, url + path + quote(name), timeout=ANSWER_S) for method, path in (
            ("GET", "/v1/models/"), ("GET", "/v1/responses/"), ("DELETE", "/v1/responses/"), ("DELETE", "/v1/steering/modules/"),
            ("GET", "/face/"))]
        for answer in answers:
            assert answer.status_code in (400, 404, 405, 501), (name, answer.request, answer.text[:200])
            assert "root:" not in answer.text and not INSIDE.search(answer.content.replace(name.encode(), b"")), answer.text[:300]


BOMB = "{% for i in range(1000000000) %}{{ 'a' * 1000000 }}{% endfor %}"


def test_s8_clients_send_no_templates(url):
    for path in ("/v1/chat/completions", "/v1/chat/completions/render", "/tokenize", "/v1/embeddings"):
        answer = post(url, path, CHAT | {"chat_template": BOMB})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "chat_template", (path, answer.text)
    for kwargs in ({"chat_template": BOMB}, {"messages": []}, {"a": nested(70)}):
        assert post(url, "/v1/chat/completions", CHAT | {"chat_template_kwargs": kwargs}).status_code == 400, kwargs


def nested_schema(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


FORM_BOMBS = {
    "30,000 brackets": {"regex": "(" * 30_000 + ")" * 30_000},
    "open brackets": {"regex": "(" * 30_000},
    "repetitions of repetitions": {"regex": "((((a{1,999}){1,999}){1,999}){1,999}){1,999}"},
    "backtracking": {"regex": "(a+)+(b+)*([a-z]+)*$"},
    "a large class": {"regex": "[" + "".join(f"\\u{i:04x}-\\u{i + 1:04x}" for i in range(0x100, 0xD000, 3)) + "]{1,500}"},
    "a rule of itself": {"grammar": "root ::= root root | root | \"\""},
    "rules without an end": {"grammar": "root ::= a\na ::= b\nb ::= a"},
    "ambiguity": {"grammar": "root ::= e\ne ::= e e e | \"a\" | \"\""},
    "many rules": {"grammar": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(2000)) + "r2000 ::= \"a\""},
    "deep schemas": {"json": nested_schema(60)},
    "a schema that is its own part": {"json": {"allOf": [{"allOf": [{"$ref": "#"}]}, {"$ref": "#"}]}},
    "lists of items": {"json": {"allOf": [{"items": [{"type": "integer"}]}], "items": [{"type": "integer"}]}},
    "references in rounds": {"json": {"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 7 + 1) % 300}"}, {"$ref": f"#/$defs/d{(i + 1) % 300}"}]}
                                                for i in range(300)}, "$ref": "#/$defs/d0"}},
    "long patterns": {"json": {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^([a-z]{{1,{i + 9}}}-){{2,40}}x$"}
                                                                for i in range(300)}}},
    "many options": {"json": {"oneOf": [{"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]} for i in range(800)]}},
    "lengths": {"json": {"type": "array", "items": {"type": "string", "minLength": 10**9}, "minItems": 10**9}},
    "a long list": {"choice": [f"{i:08d}" * 2 for i in range(9000)]},
    "unknown kinds": {"json": {"type": ["x", 5, None]}},
    "a tag in a tag": {"structural_tag": {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": ""}] * 50}}},
}


def test_s9_a_form_that_costs_too_much_is_refused_and_others_go_on(url):
    def attack():
        answers = {}
        for name, form in FORM_BOMBS.items():
            answers[name] = post(url, "/v1/completions", {"prompt": "a", "max_tokens": 8, "structured_outputs": form})
            assert answers[name].status_code in (200, 400), (name, answers[name].text)
            if answers[name].status_code == 400:
                error = answers[name].json()["error"]
                assert error["code"] == "invalid_json" or error["param"].startswith("structured_outputs"), (name, error)
        return answers

    answers = beside_a_canary(url, attack)
    assert sum(answer.status_code == 400 for answer in answers.values()) >= 8
    # A good form is not kept waiting by what went before.
    assert post(url, "/v1/completions", {"prompt": "a", "structured_outputs": {"choice": ["x"]}}).json()["choices"][0]["text"] == "x"


def media(address):
    """Bodies by endpoint that name something to fetch."""
    image = {"type": "image_url", "image_url": {"url": address}}
    return [
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [image]}]}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": address}}]}]}),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": address}}]}]}),
        ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": address}}}}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": address}]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": address}]}]}),
        ("/v1/messages", {"model": "rudder-demo", "max_tokens": 2, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": address}}]}]}),
        ("/tokenize", {"messages": [{"role": "user", "content": [image]}]}),
    ]


def test_s11_nothing_is_fetched(url):
    listener = socket.create_server(("127.0.0.1", 0))
    visitors = []

    def listen():
        while True:
            try:
                visitors.append(listener.accept())
            except OSError:
                return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    for address in (f"http://127.0.0.1:{port}/a.png", f"http://[::ffff:127.0.0.1]:{port}/", f"http://2130706433:{port}/", f"//127.0.0.1:{port}/",
                    f"http://localhost:{port}#@example.com/", "file:///etc/passwd"):
        for path, body in media(address):
            answer = post(url, path, body)
            assert answer.status_code == 400, (path, answer.text)
            assert "root:" not in answer.text
    time.sleep(0.2)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    assert not visitors


def test_s12_no_media_is_decoded(url):
    for path, body in media("data:image/png;base64," + "A" * 4000):
        answer = post(url, path, body)
        assert answer.status_code == 400 and answer.json()["error"].get("param"), (path, answer.text)
    assert not re.search(r"lib(png|jpeg|webp|openjp2|av\w+|sndfile|opencv)", libraries())


def test_s13_errors_tell_nothing_of_the_inside(url):
    texts = [post(url, "/v1/completions", {"prompt": "a", "max_tokens": 2} | fault).text for fault in AT_FAULT]
    texts += [post(url, path, body).text for path, body in media("data:x")]
    texts += [post(url, "/v1/completions", Raw(b"[" * 5000)).text, httpx2.get(url + "/v1/responses/x").text, httpx2.get(url + "/no").text]
    assert len(texts) > 40
    for text in texts:
        assert not INSIDE.search(text.encode()), text


def test_s14_a_body_in_chunks_of_one_byte(url):
    body = dump({"prompt": "a" * 300_000, "max_tokens": 1, "truncate_prompt_tokens": 4})
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    before = metric(url, "process_resident_memory_bytes")

    async def send():
        connection = Connection(int(url.rsplit(":", 1)[1]))
        head = request_bytes("POST", "/v1/completions", b"", [("Content-Length", None), ("Transfer-Encoding", "chunked")])
        answer = await asyncio.wait_for(connection.ask(head + small), ANSWER_S)
        deep = await connection.ask(request_bytes("POST", "/v1/completions", b'{"prompt":' + b"[" * 1_000_000))
        connection.close()
        return answer.status, deep.status

    assert asyncio.run(send()) == (200, 400)
    assert metric(url, "process_resident_memory_bytes") - before < growth_bound()


def listening(pid):
    """Addresses on which the process waits for connections."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if match := re.match(r"socket:\[(\d+)\]", str(entry.readlink())):
            inodes.add(match[1])
    found = []
    for table, listens in (("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == listens and words[9] in inodes:
                found.append((table, words[1]))
    return found


def test_s15_one_port_is_open_and_only_to_this_machine():
    with serving("--kv-cache-memory-bytes", "16M") as server:
        port = int(server.url.rsplit(":", 1)[1])
        assert listening(server.process.pid) == [("tcp", f"0100007F:{port:04X}")]


def test_s16_requests_of_one_id_are_different_requests(url):
    def ask(i):
        body = {"prompt": f"Number {i} is", "max_tokens": 12, "temperature": 0, "request_id": "same", "ignore_eos": True, "cache_salt": f"{i}"}
        return post(url, "/v1/completions", body, headers={"content-type": "application/json", "x-request-id": "same"}).json()["choices"][0]["text"]

    alone = [ask(i) for i in range(16)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone


def test_s17_keys_share_no_cached_prefix(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    keys.chmod(0o600)
    with serving("--api-key-file", str(keys), "--kv-cache-memory-bytes", "64M") as server:
        def cached(key, **fields):
            body = {"prompt": "The same words again and again. " * 12, "max_tokens": 1} | fields
            headers = {"Authorization": f"Bearer {key}"}
            usage = httpx2.post(server.url + "/v1/completions", json=body, headers=headers, timeout=ANSWER_S).json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        assert cached("first") == 0
        assert cached("first") > 32, "the test can see a hit"
        assert cached("second") == 0
        assert cached("first", cache_salt="mine") == 0


def test_s18_the_binary_is_hardened():
    def readelf(*flags):
        return subprocess.run(["readelf", "-W", *flags, str(BINARY)], capture_output=True, text=True, check=True).stdout

    if is_instrumented():
        pytest.skip("an instrumented binary is not what is shipped")
    symbols = readelf("--dyn-syms")
    head, dynamic, segments = readelf("-h"), readelf("-d"), readelf("-l")
    assert re.search(r"Type:\s+DYN", head), "position-independent"
    assert "BIND_NOW" in dynamic or re.search(r"FLAGS_1.*NOW", dynamic)
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK\s.*\sRW\s", segments), "the stack is not executable"
    assert "__stack_chk_fail" in symbols and re.search(r"__\w+_chk@", symbols)
    # A library path is the binary's own folder or absolute: none that whoever starts it chooses.
    paths = re.findall(r"\((?:RUNPATH|RPATH)\)[^[]*\[(.*)\]", dynamic)
    assert all(each == "$ORIGIN" or each.startswith("/") for path in paths for each in path.split(":")), paths
