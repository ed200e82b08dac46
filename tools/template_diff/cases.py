"""Conversations that the templates are tried on, and snippets that are tried on one context."""

_TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather \"now\" at a place <é>",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"type": "string", "enum": ["C", "F"]}}}}},
    {"type": "function", "function": {"name": "noop", "parameters": {}}}]
_BASE = {"bos_token": "<s>", "eos_token": "</s>"}
_USER = {"role": "user", "content": "  Hello, \"world\"\n  it's ünïcode 你好 😀  "}
_REPLY = {"role": "assistant", "content": "Hi!\n"}
_SYSTEM = {"role": "system", "content": "Be brief.\n"}
_CALL = {"role": "assistant", "content": None, "tool_calls": [{
    "id": "abc123def", "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2], "x": 1.5}}}]}
_TOOL = {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "abc123def"}
_THINK = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo: 42"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "look "}, {"type": "image"}]}

_CALLS = {"role": "assistant", "content": "", "tool_plan": "I look.", "thinking": "Which tools?", "tool_calls": [
    {"id": "abc123def", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bern"}}},
    {"id": "xyz789abc", "type": "function", "function": {"name": "noop", "arguments": {}}}]}
_TOOL2 = {"role": "tool", "content": "none", "name": "noop", "tool_call_id": "xyz789abc"}
_REASONED = {"role": "assistant", "content": "42.", "reasoning_content": "Six times seven.\n", "thinking": "6 * 7"}
_TEXTS = {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": " two"}]}
_QUIET = {"role": "system", "content": "/no_think Answer in one word."}
_DOCUMENTS = [{"doc_id": 7, "title": "T", "text": "It is <b>21</b> degrees."}, {"title": "U", "text": "Snow.\n"}]

CONVERSATIONS = []
for _messages in ([_USER], [_SYSTEM, _USER], [_USER, _REPLY, _USER], [_SYSTEM, _USER, _REPLY, _USER],
                  [_USER, _REPLY], [_USER, _CALL, _TOOL], [_SYSTEM, _USER, _CALL, _TOOL, _REPLY, _USER],
                  [_USER, _USER], [_USER, _THINK, _USER], [_USER, _THINK], [_PARTS], [_USER, _TOOL, _TOOL],
                  [], [_SYSTEM], [{"role": "user", "content": ""}], [_USER, _CALLS, _TOOL, _TOOL2, _REPLY, _USER],
                  [_SYSTEM, _USER, _REASONED, _USER, _REASONED], [_TEXTS], [_QUIET, _USER, _REPLY, _USER],
                  [{"role": "developer", "content": "Be kind."}, _USER], [_USER, {**_CALL, "content": "Let me see."}, _TOOL2]):
    for _extra in ({"add_generation_prompt": True}, {"add_generation_prompt": False},
                   {"add_generation_prompt": True, "tools": _TOOLS, "enable_thinking": False},
                   {"add_generation_prompt": True, "tools": _TOOLS[1:], "documents": _DOCUMENTS, "thinking": True,
                    "reasoning_effort": "high", "controls": {"citations": True}, "tools_in_user_message": False}):
        CONVERSATIONS.append({**_BASE, "messages": _messages, **_extra})

CONTEXT = {"s": "Hello World", "u": "ünï 😀", "e": "", "n": 7, "f": 2.5, "big": 1e20, "t": True, "nil": None,
           "l": [3, 1, 2], "words": ["b", "A", "c"], "d": {"b": 1, "a": [1, {"x": None}], "items": 5},
           "users": [{"name": "Bo", "age": 5, "ok": True}, {"name": "al", "age": 3}], "nested": [[1, 2], [3]],
           "q": "it's \"q\"\n\t\\ \u0007"}

SNIPPETS = [
    "{{ l }}|{{ d }}|{{ words }}|{{ q }}|{{ [q] }}|{{ (1,) }}|{{ (1, 'a') }}|{{ () }}|{{ t }}|{{ nil }}|{{ f }}|{{ big }}",
    "{{ 1/2 }} {{ 7//2 }} {{ -7//2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 2**10 }} {{ 2**-1 }} {{ 1e3 }} {{ 1.0 }} {{ 0.1+0.2 }}",
    "{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }} {{ -n|abs }} {{ - 3 + 5 }} {{ 'a' * 3 }} {{ [1] * 2 + [3] }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ undefined_thing }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ [1,2] == [1,2] }} {{ nil == none }}",
    "{{ 'ell' in s }} {{ 'x' not in s }} {{ 1 in l }} {{ 'b' in d }} {{ 'z' in d }} {{ not 1 in l }}",
    "{{ s[0] }}{{ s[-1] }}{{ s[1:3] }}{{ s[::-1] }}{{ u[4] }}{{ u[-2:] }}{{ u[::2] }}|{{ l[0] }}{{ l[-1] }}{{ l[5] }}{{ l[1:] }}{{ l[::-1] }}{{ l[:-1] }}{{ l[10:] }}{{ l[-100:2] }}",
    "{{ d.b }}{{ d['b'] }}{{ d.missing }}{{ d['missing'] }}{{ d.a[1].x }}{{ d['items'] }}{{ nil.foo }}{{ s.nothing }}",
    "{{ missing.attr }}", "{{ missing['a'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ missing < 1 }}",
    "{{ missing }}|{{ missing is defined }}|{{ missing | default('x') }}|{{ missing|length }}|{{ e | default('y') }}|{{ e | default('y', true) }}|{{ missing|d }}",
    "{% for x in missing %}{{ x }}{% else %}none{% endfor %}", "{% for x in nil %}{% endfor %}", "{% for x in 5 %}{% endfor %}",
    "{% for k in d %}{{ k }},{% endfor %}{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k, v in d|items %}{{ k }}{% endfor %}{{ d|dictsort }}{{ d.keys()|list }}{{ d.values()|list }}",
    "{% for a in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.cycle('x','y') }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for a in l if a > 1 %}{{ loop.index }}:{{ a }} {% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for x in nested %}{% for y in x %}{{ loop.index }}{{ y }}{{ loop.depth }}{% endfor %}{% endfor %}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% if t %}{% set y = 5 %}{% endif %}{{ y }}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "{% set q.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x %}  hi {{ n }} {% endset %}[{{ x }}]{% set y | upper | trim %} yo {% endset %}[{{ y }}]",
    "{% macro m(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, c=9) }}|{{ m() }}|{{ m(a=4) | length }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "{% set g = 'G' %}{% macro m() %}{{ g }}{{ hidden }}{% endmacro %}{% for hidden in l %}{{ m() }}{% endfor %}",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{{ s|upper }}{{ s|lower }}{{ s|title }}{{ s|capitalize }}{{ u|upper }}{{ 'ß'|upper }}{{ s|length }}{{ u|length }}{{ s|reverse }}{{ s|first }}{{ s|last }}",
    "{{ '  x '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ s|replace('o', '0') }}|{{ s|replace('o', '0', 1) }}|{{ 'aaa'|replace('', '-') }}",
    "{{ s.upper() }}{{ s.lower() }}{{ s.split() }}{{ s.split('o') }}{{ s.split('o', 1) }}{{ ' a  b '.split() }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a b '.split(' ') }}{{ 'a b  c'.split(none, 1) }}",
    "{{ '  x '.strip() }}|{{ '  x '.lstrip() }}|{{ '  x '.rstrip() }}|{{ 'xyx'.strip('x') }}|{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'abc'.find('z') }}{{ 'aXbX'.count('X') }}{{ 'abc'.replace('b', 'B') }}",
    "{{ ', '.join(words) }}{{ 'x'.isdigit() }}{{ '12'.isdigit() }}{{ 'ab'.isalpha() }}{{ 'AB'.isupper() }}{{ 'ab'.islower() }}{{ ' '.isspace() }}{{ 'a b'.title() }}{{ 'a\\nb'.splitlines() }}{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}",
    "{{ l|sort }}{{ words|sort }}{{ words|sort(reverse=true) }}{{ words|sort(case_sensitive=true) }}{{ users|sort(attribute='age')|map(attribute='name')|list }}{{ l|sum }}{{ l|min }}{{ l|max }}{{ [1,1,2]|unique|list }}{{ l|reverse|list }}",
    "{{ l|join(',') }}{{ l|join }}{{ users|join(', ', attribute='name') }}{{ l|first }}{{ l|last }}{{ []|first }}{{ s|list }}{{ words|map('upper')|list }}{{ words|map('replace', 'b', 'x')|join }}",
    "{{ users|selectattr('ok')|list|length }}{{ users|selectattr('age', 'gt', 4)|map(attribute='name')|join }}{{ users|rejectattr('ok', 'defined')|map(attribute='name')|join }}{{ l|select('odd')|list }}{{ l|reject('equalto', 1)|list }}{{ l|select|list }}{{ users|map(attribute='ok', default='no')|list }}",
    "{{ '42'|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ 3.9|int }}{{ '3.7'|int }}{{ '2.5'|float }}{{ n|float }}{{ n|string + 'x' }}{{ 2.567|round(2) }}{{ 2.5|round }}{{ 2.1|round(0, 'ceil') }}{{ f|abs }}",
    "{{ d|tojson }}|{{ d|tojson(indent=2) }}|{{ l|tojson(indent=4) }}|{{ q|tojson }}|{{ u|tojson }}|{{ u|tojson(ensure_ascii=true) }}|{{ []|tojson(indent=2) }}|{{ {}|tojson(indent=2) }}|{{ f|tojson }}|{{ nil|tojson }}|{{ d|tojson(sort_keys=true) }}|{{ d|tojson(separators=(',', ':')) }}",
    "{{ missing|tojson }}", "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ '<a href=\"x\">&'|e }}|{{ '<b>'|safe }}",
    "{{ n is number }}{{ n is integer }}{{ f is float }}{{ s is string }}{{ d is mapping }}{{ l is iterable }}{{ s is iterable }}{{ n is iterable }}{{ l is sequence }}{{ nil is none }}{{ t is boolean }}{{ t is true }}{{ t is false }}{{ n is odd }}{{ n is even }}{{ n is divisibleby(7) }}{{ n is divisibleby 2 }}",
    "{{ n is eq 7 }}{{ n is equalto(7) }}{{ n is ne 7 }}{{ n is gt 3 }}{{ n is lt 3 }}{{ n is ge 7 }}{{ n is le 6 }}{{ 1 is in l }}{{ 'a' is in 'abc' }}{{ n is not none }}{{ not n is none }}{{ 'ab' is lower }}{{ 'AB' is upper }}{{ n is sameas n }}{{ range is callable }}",
    "{{ n is string or n is number and not nil }}{{ 'yes' if n > 3 else 'no' }}{{ 'yes' if n > 30 }}{{ (n > 3) ~ '' }}{{ 1 if 0 else 2 if 0 else 3 }}{{ nil or 'or' }}{{ e and 'and' }}|{{ not e }}",
    "{{ range(3)|list }}{{ range(1, 7, 2)|list }}{{ range(3, 0, -1)|list }}{% for i in range(2) %}{{ i }}{% endfor %}", "{{ range(100001)|list }}",
    "{{ {'a': 1, 'b': {'c': [1, 2]}}['b']['c'][1] }}{{ {'a': 1}.a }}{{ {}|length }}{{ {'x': 1, 'x': 2} }}{{ dict(a=1) }}{{ d.get('b') }}{{ d.get('zz') }}{{ d.get('zz', 3) }}",
    "{{ l.append(4) }}", "{{ d.update({}) }}", "{{ l.index(1) }}{{ l.count(1) }}", "{{ s|nofilter }}", "{{ s is notest }}",
    "{{ raise_exception('stop') }}", "{{ 1 / 0 }}", "{{ s + 1 }}", "{{ l + s }}", "{{ s < 1 }}", "{{ none|length }}", "{{ 5|join }}",
    "a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  {%- if true -%}\n  b\n  {%- endif %}\nc", "a {%+ if true %} b {% endif +%}\n c", "  {# x #}\n  b {# y #} c\n", "x {#- y -#} z",
    "\n{{ n }}\n\n", "{% raw %} {{ x }} {% not %} {% endraw %}\ny", "{%- raw -%} {{ x }} {%- endraw -%} y", "{% for i in l -%}\n  {{ i }}\n{%- endfor %}",
    "{% for i in l %}\n    {% if i == 1 %}{% continue %}{% endif %}\n    {{ i }}\n{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ 'a' 'b' }}{{ \"dq\" }}{{ 'esc\\'d \\n \\t \\\\ \\x41 \\u00e9' }}{{ '\\q' }}", "{{ 1_000 }}{{ true and True }}{{ None }}{{ False }}",
    "{{ {'a': {'b': 1}}['a'] }}{{ {'k': '}}'} }}{{ '{%' }}", "{{", "{% if %}", "{% if x %}", "{% endif %}", "{{ 1 + }}", "{{ (1 }}", "{% unknown %}", "{{ 'a }}", "{# open",
    "{% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}", "{% filter trim | upper %}  x {% endfilter %}", "{{ users|map(attribute='name')|map('lower')|join('+') }}",
    "{{ nested|sum(start=[]) }}", "{{ words|sort|first }}{{ 'x'.join('abc') }}{{ ('a', 'b')|join('-') }}{{ [1, 'a', none, true, 1.0] }}{{ [[], {}, ()] }}",
    "{{ n == 7 and 'a' or 'b' }}{{ [n, s][0] }}{{ s[n - 6:n] }}{{ l|length > 2 }}{{ l|length - 1 }}{{ (l|length) % 2 == 0 }}",
]
