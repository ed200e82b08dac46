"""Claude Code and Codex themselves, in a session of three turns each. The model is none that calls tools by itself: what stands
between agent and server chooses the first calls, of tools that change nothing."""

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import threading

import httpx2
import pytest

from conftest import DEMO, ROOT, is_instrumented, serving

AGENTS = ROOT / ".venv-agents"
CODEX = AGENTS / "bin" / "codex"
CONTEXT = 131072  # Claude Code asks for 32,000 tokens beside its prompt
SHORT = 36000  # where that has no room
TURN_S = 600
TEMPLATE = """{%- if tools -%}{{- '<|im_start|>system\\n<tools>\\n' -}}{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
{{- '</tools>\\nCall one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' -}}{%- endif -%}
{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content -}}
{%- for call in message.tool_calls -%}{{- '<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' -}}{%- endfor -%}
{{- '<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(is_instrumented(), reason="about forms, not about memory"),
    pytest.mark.skipif(not CODEX.exists(), reason="tools/setup.sh agents installs them"),
]


def claude():
    return next(AGENTS.glob("lib/python3*/site-packages/claude_agent_sdk/_bundled/claude"))


def long_model(folder, context):
    """The demo model with a long context, and a template that shows tools."""
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@contextlib.contextmanager
def serving_long(tmp_path, context=CONTEXT):
    (tmp_path / "model").mkdir()
    with serving("--served-model-name", "m", "--tool-call-parser", "hermes", model=long_model(tmp_path / "model", context)) as server:
        yield server


class Between(http.server.ThreadingHTTPServer):
    """Passes requests on. Of those with tools the first ones call `chosen`: (name, {argument: value}) in turn. Those tools have
    no other arguments in any request, so that the prompts of all turns begin alike."""

    def __init__(self, server, chosen):
        super().__init__(("127.0.0.1", 0), Handler)
        self.server_behind, self.chosen, self.turns, self.statuses = server, list(chosen), [], []
        self.schemas = {name: {"type": "object", "properties": {key: {"enum": [value]} for key, value in arguments.items()},
                               "required": list(arguments), "additionalProperties": False} for name, arguments in chosen}
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def choose(self, path, body):
        is_message = "messages" in path
        for tool in body["tools"]:
            if tool.get("name") in self.schemas:
                tool["input_schema" if is_message else "parameters"] = self.schemas[tool["name"]]
        body["max_tokens" if is_message else "max_output_tokens"] = body.get("max_tokens", 1000) if self.chosen else 16
        if not self.chosen:
            return
        name, _ = self.chosen.pop(0)
        body["tool_choice"] = {"type": "tool" if is_message else "function", "name": name}

    def note(self, text):
        """Shares of cached tokens, from the events of an answer."""
        for line in text.splitlines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event["type"] == "message_start":
                usage = event["message"]["usage"]
                self.turns.append(usage["cache_read_input_tokens"] / (usage["input_tokens"] + usage["cache_read_input_tokens"]))
            elif event["type"] in ("response.completed", "response.incomplete"):
                usage = event["response"]["usage"]
                self.turns.append(usage["input_tokens_details"]["cached_tokens"] / usage["input_tokens"])


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        between = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_turn = bool(body.get("tools"))
        if is_turn:
            between.choose(self.path, body)
        headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "content-length", "accept-encoding")}
        answer = httpx2.post(between.server_behind.url + self.path, json=body, headers=headers, timeout=TURN_S)
        between.statuses.append((answer.status_code, self.path, answer.text if answer.status_code != 200 else ""))
        if is_turn and answer.status_code == 200:
            between.note(answer.text)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", answer.headers["content-type"])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)


def run_agent(command, home, **more):
    """In a folder of its own, with a home of its own, and no way to anything but this machine."""
    folder = home / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("A note.\n")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", "HTTP_PROXY": "http://127.0.0.1:9",
                   "HTTPS_PROXY": "http://127.0.0.1:9", **more}
    return subprocess.run(list(map(str, command)), cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=3 * TURN_S, check=False)


def check(between, done):
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert not [status for status in between.statuses if status[0] != 200], between.statuses
    assert not between.chosen and len(between.turns) >= 3, between.turns
    assert between.turns[1] >= 0.8 and between.turns[2] >= 0.8, between.turns


@pytest.mark.parametrize("context, more", [(CONTEXT, {}), (SHORT, {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "8000"})])
def test_claude_code(tmp_path, context, more):
    with serving_long(tmp_path, context) as server:
        between = Between(server, [("Read", {"file_path": str(tmp_path / "folder" / "a.txt")}),
                                   ("ToolSearch", {"query": "select:WebFetch", "max_results": 1})])
        done = run_agent([claude(), "-p", "Say hi", "--model", "m", "--output-format", "json", "--dangerously-skip-permissions"], tmp_path,
                         ANTHROPIC_BASE_URL=between.url, ANTHROPIC_API_KEY="none", CLAUDE_CONFIG_DIR=str(tmp_path / "claude"),
                         IS_SANDBOX="1", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_TELEMETRY="1", DISABLE_AUTOUPDATER="1",
                         DISABLE_ERROR_REPORTING="1", **more)
        between.shutdown()
    check(between, done)


CODEX_CONFIG = """model = "m"
model_provider = "rudder"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.rudder]
name = "rudder"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "RUDDER_KEY"
"""


def test_codex(tmp_path):
    home = tmp_path / "codex"
    home.mkdir()
    with serving_long(tmp_path) as server:
        between = Between(server, [("exec_command", {"cmd": "cat a.txt"}), ("get_goal", {})])
        (home / "config.toml").write_text(CODEX_CONFIG.format(url=between.url))
        done = run_agent([CODEX, "exec", "--skip-git-repo-check", "Say hi"], tmp_path, CODEX_HOME=str(home), RUDDER_KEY="none")
        between.shutdown()
    check(between, done)
