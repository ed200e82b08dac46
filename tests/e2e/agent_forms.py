"""The forms of what coding agents send, as recorded from Claude Code 2.1.332 and Codex 0.147.0; the words are ours."""

import copy
import json


def _schema(**properties):
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "properties": {name: {"type": kind} for name, kind in properties.items()}, "required": list(properties),
            "additionalProperties": False}


CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
                      "mid-conversation-tool-changes-2026-07-01,thinking-token-count-2026-05-13,advanced-tool-use-2025-11-20,"
                      "effort-2025-11-24,thinking-display-updates-2026-08-18",
}
CLAUDE_TOOLS = [
    {"name": "Look", "description": "Reads a file.", "input_schema": _schema(path="string")},
    {"name": "Find", "description": "Finds tools that are deferred.", "input_schema": _schema(query="string", max_results="integer")},
    {"name": "Placeholder", "description": "Never call it.", "input_schema": {"type": "object", "properties": {}}, "defer_loading": True},
]
FETCH = {"name": "Fetch", "description": "Reads a page.", "input_schema": _schema(url="string"), "defer_loading": True}
CACHED = {"cache_control": {"type": "ephemeral"}}
INSTRUCTIONS = "You work on files in a folder. Say what you do, and do it with the tools. " * 6


def claude_turn(number, history=(), tools=CLAUDE_TOOLS):
    """The request of turn `number`; `history` is what has been answered and what came of it."""
    environment = "# Environment\nA folder of notes, a clock and a lamp."
    # The first request has it as a block, later ones as a string.
    content = [{"type": "text", "text": environment, **CACHED}] if not history else environment
    return {
        "model": "rudder-demo", "max_tokens": 24, "stream": True,
        "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332.0b8; cc_entrypoint=sdk-cli; cch={number}a;"},
                   {"type": "text", "text": "You are of help.", **CACHED}, {"type": "text", "text": INSTRUCTIONS, **CACHED}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nNotes are short.\n</system-reminder>"},
                                         {"type": "text", "text": "Say hi"}]},
            {"role": "system", "content": content}, *copy.deepcopy(list(history))],
        "tools": tools, "thinking": {"type": "adaptive", "display": "updates"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"}, "metadata": {"user_id": json.dumps({"device_id": "0", "session_id": "0"})},
    }


# What a session of another model brings along: all of it is history.
CLAUDE_PAST = [
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "I look.", "signature": ""}, {"type": "redacted_thinking", "data": "eA=="},
        {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"type": "web_search_result", "url": "u", "title": "t"}]},
        {"type": "tool_use", "id": "call_1", "name": "Look", "input": {"path": "a.png"}},
        {"type": "tool_use", "id": "call_2", "name": "Find", "input": {"query": "Fetch", "max_results": 3}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "call_1", "is_error": False, "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A note."}}]},
        {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "tool_reference", "tool_name": "Fetch"}], **CACHED}]},
]

_FUNCTION = {"type": "function", "strict": False}
CODEX_TOOLS = [
    {**_FUNCTION, "name": "run", "description": "Runs it.", "parameters": _schema(cmd="string")},
    {**_FUNCTION, "name": "plan", "description": "Plans it.", "parameters": _schema(step="string")},
    {"type": "namespace", "name": "several_v1", "description": "Some together.", "tools": [
        {**_FUNCTION, "name": "close", "description": "Closes it.", "parameters": _schema(target="string")},
        {**_FUNCTION, "name": "open", "description": "Opens it.", "parameters": _schema(target="string")}]},
    {"type": "custom", "name": "patch", "description": "Changes files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
    {"type": "web_search", "external_web_access": True},
]


def _message(number, role, *texts):
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": [{"type": "input_text", "text": text} for text in texts]}


def codex_turn(number, history=()):
    return {
        "model": "rudder-demo", "instructions": INSTRUCTIONS, "max_output_tokens": 24,
        "input": [_message(1, "developer", "<skills>\nNone.\n</skills>", "<permissions>\nAll.\n</permissions>"),
                  _message(2, "user", "<environment_context>\n  <cwd>/home/u</cwd>\n</environment_context>"),
                  _message(3, "user", "Say hi"), *copy.deepcopy(list(history))],
        "tools": CODEX_TOOLS, "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"summary": "auto"}, "store": False,
        "stream": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0",
        "client_metadata": {"session_id": "0", "turn_id": str(number)},
    }


CODEX_PAST = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "I run it."}], "encrypted_content": None},
    {"type": "function_call", "id": "fc_1", "name": "run", "arguments": "{\"cmd\": \"ls\"}", "call_id": "call_1"},
    {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "a.png\n"},
    {"type": "function_call", "id": "fc_2", "namespace": "several_v1", "name": "open", "arguments": "{\"target\": \"x\"}", "call_id": "call_2"},
    {"type": "function_call_output", "id": "fco_2", "call_id": "call_2", "output": [
        {"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": "data:image/png;base64,eA=="}]},
    {"type": "custom_tool_call", "id": "ctc_1", "status": "completed", "call_id": "call_3", "name": "patch", "input": "*** Begin"},
    {"type": "custom_tool_call_output", "call_id": "call_3", "output": "done"},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "local_shell_call", "call_id": "call_4", "status": "completed", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call_output", "call_id": "call_4", "output": "b"},
    {"type": "ghost_snapshot", "ghost_commit": {}},
    {"type": "compaction", "encrypted_content": "gAAAA"},
]
