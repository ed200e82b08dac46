"""Random templates: expressions over typed values, and statements around them. Mostly what works,
now and then what must fail. A seed decides everything."""
import random
import sys

CONTEXT = {
    "s": "Hello World", "u": "ünï 😀 Straße", "e": "", "q": "it's \"q\"\n\t\\ <b>", "p": "a-b c_d (e) F.g",
    "lines": "one\n  two\n\nthree \n", "num": " 42 ", "n": 7, "z": 0, "neg": -3, "big": 2**63, "f": 2.5,
    "g": -0.125, "huge": 1e20, "t": True, "no": False, "nil": None,
    "l": [3, 1, 2, 1], "words": ["b", "A", "c", "a b"], "mixed": [1, "a", None, 2.5, [1], True],
    "empty": [], "nested": [[1, 2], [3], []], "d": {"b": 1, "a": [1, {"x": None}], "items": 5},
    "k": {"name": "Bo", "n": 2, "10": "x"}, "none": {},
    "users": [{"name": "Bo", "age": 5, "ok": True, "tags": ["x"]}, {"name": "al", "age": 3},
              {"name": "Cy", "age": 5, "ok": False, "tags": []}],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4}]}]}, {"v": 5}],
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi\n"},
                 {"role": "assistant", "content": None, "tool_calls": [
                     {"id": "c1", "type": "function",
                      "function": {"name": "f", "arguments": {"a": 1, "b": ["x", None]}}}]},
                 {"role": "tool", "content": "{}"}],
}

STRINGS = ["'a'", "'Hello'", '"x y"', "''", "'ab\\ncd'", "'%'", "', '", "'b'", "'é'", "'<&>'", "'A-b'", "'o'",
           "' '", "'name'", "'l'", "'12'", "'-3.5'", "'0x1f'", "'1e3'", "'a' 'b'", "'\\u00e9\\x41\\101\\q'"]
FORMATS = ["'%s'", "'%s|%s'", "'%5s|'", "'%-6s|'", "'%.2s'", "'%r'", "'%d'", "'%05d'", "'%+d'", "'% d'", "'%x'",
           "'%#X'", "'%o'", "'%f'", "'%.2f'", "'%08.3f'", "'%e'", "'%g'", "'%.3G'", "'%c'", "'%%'", "'%(name)s'",
           "'%(n)03d'", "'%i%%'", "'%*d'", "'%-*s|'", "'%.*f'", "'%#o'", "'%a'", "'%5.1f%%'", "'%y'", "'%'"]
BRACES = ["'{}'", "'{} {}'", "'{0}{0}'", "'{1}-{0}'", "'{a}'", "'{:>6}'", "'{:<6}|'", "'{:^7}|'", "'{:*^9}'", "'{:05}'",
          "'{:+}'", "'{:,}'", "'{:_}'", "'{:x}'", "'{:#b}'", "'{:.2f}'", "'{:8.3f}'", "'{:e}'", "'{:g}'", "'{:.3}'",
          "'{:%}'", "'{!r}'", "'{!s:>8}'", "'{!a}'", "'{{}}'", "'{0[0]}'", "'{0[name]}'", "'{0.x}'", "'{:{}}'", "'{:d}'",
          "'{:s}'", "'{:010.2f}'", "'{: }'", "'{:c}'", "'{:o}'", "'{:=+6}'", "'{}{'", "'}'", "'{0}{}'", "'{:z}'", "'{:,.2f}'",
          "'{:10}'"]
STRFTIME = ["'%Y'", "'%d %b %Y'", "'%B'", "'%A'", "'%%'", "'x'"]

TEXT_FILTERS = [
    "upper", "lower", "title", "capitalize", "trim", "trim('x')", "trim(' \\n')", "replace('o', '0')", "replace('', '-')",
    "replace('l', '', 1)", "replace(1, 2)", "indent", "indent(2)", "indent(2, true)", "indent(1, blank=true)",
    "indent('> ')", "indent(width=3, first=true)", "wordcount", "reverse", "string", "center(12)", "center", "length",
    "count", "escape", "e", "forceescape", "safe", "urlencode", "striptags", "truncate(5)", "truncate(6, true)",
    "truncate(8, false, '..', 0)", "truncate(3, end='')", "wordwrap(5)", "wordwrap(4, false)", "int", "int(5)",
    "int(base=16)", "int(0, 8)", "float", "float(1.5)", "list", "first", "last", "tojson", "tojson(true)",
    "tojson(ensure_ascii=true)", "pprint", "format(1)", "format('a', 2)", "format(name='x', n=1)", "default('x')",
    "default('x', true)", "d", "d(1, boolean=true)", "sort", "unique | join", "batch(3) | list", "map('upper') | join",
    "select('in', 'aeiou') | list", "join('-')", "title | lower", "string | length", "trim | upper", "min", "max",
    "list | length", "capitalize | center(20)", "filesizeformat", "abs", "nosuchfilter", "round", "attr('upper')",
    "slice(2) | map('join') | list", "wordwrap(6, wrapstring='|')", "upper(1)", "trim(chars='H')", "items | list",
    "groupby(0)", "sum", "dictsort"]
LIST_FILTERS = [
    "join", "join(', ')", "join(d='+')", "length", "count", "first", "last", "sort", "sort(reverse=true)", "sort(true)",
    "sort(case_sensitive=true)", "unique | list", "unique(true) | list", "reverse | list", "list", "sum", "sum(start=10)",
    "sum(start=[])", "min", "max", "max(true)", "map('string') | list", "map('upper') | join('|')", "select | list",
    "reject('none') | list", "select('odd') | list", "reject('equalto', 1) | list", "select('gt', 1) | list",
    "select('string') | list", "select('in', [1, 'a']) | list", "batch(2) | list", "batch(3, 0) | list",
    "batch(2, fill_with='x') | list", "slice(2) | list", "slice(3, 'x') | list", "map('tojson') | join", "tojson",
    "tojson(indent=2)", "tojson(none, 1)", "tojson(separators=(',', ':'))", "tojson(indent='\\t')", "string", "pprint",
    "map('default', 'x') | list", "map('int') | sum", "map('abs') | list", "map('list') | list", "map('length') | list",
    "sort | first", "unique | sort | join", "random | string | length", "first | default('none')", "reverse | first",
    "map(attribute=0) | list", "map('join', '-') | list", "groupby(0)", "last | upper", "list | reverse",
    "select('nosuchtest') | list", "map('nosuch') | list", "map() | list", "reject | list", "urlencode", "indent",
    "map('format', 1) | list", "map('round', 1) | list", "map('replace', 'a', 'b') | list", "batch(0) | list",
    "dictsort", "slice(0) | list", "length | string", "select('divisibleby', 2) | list", "reject('in', ['b']) | list"]
USER_FILTERS = [
    "map(attribute='name') | join(' ')", "map(attribute='age') | sum", "map(attribute='ok', default='-') | list",
    "selectattr('ok') | map(attribute='name') | list", "rejectattr('ok') | map(attribute='name') | list",
    "selectattr('age', 'gt', 3) | list | length", "selectattr('name', 'equalto', 'Bo') | first",
    "rejectattr('tags', 'defined') | list", "sum(attribute='age')", "sum('age', 10)", "sort(attribute='age')",
    "sort(attribute='age,name') | map(attribute='name') | list", "sort(attribute='name', case_sensitive=true)",
    "groupby('age')", "groupby('ok', default=none)", "groupby('name') | map(attribute='grouper') | list",
    "groupby('age') | map('last') | map('length') | list", "min(attribute='age')", "max(attribute='name')",
    "unique(attribute='age') | list | length", "join(', ', attribute='name')", "map('items') | map('list') | list",
    "map('dictsort') | first", "map(attribute='tags.0') | list", "map('attr', 'keys') | list | length", "tojson(sort_keys=true)",
    "groupby('age', case_sensitive=true)", "selectattr('tags.0', 'defined') | list", "selectattr() | list",
    "map('tojson') | list", "map('length') | list", "sort(attribute='ok')", "map(attribute='name', x=1) | list"]
DICT_FILTERS = [
    "length", "list", "items | list", "items | map('first') | list", "dictsort", "dictsort(true)", "dictsort(by='value')",
    "dictsort(false, 'key', true)", "tojson", "tojson(indent=4)", "tojson(sort_keys=true)", "string", "first", "last", "xmlattr",
    "xmlattr(false)", "urlencode", "pprint", "join('-')", "sort", "default({})", "count", "list | sort", "reverse | list",
    "attr('items')", "map('upper') | list", "safe", "items", "batch(1) | list", "select('string') | list", "sum", "min"]
NUMBER_FILTERS = [
    "abs", "int", "float", "string", "round", "round(1)", "round(2, 'floor')", "round(0, 'ceil')", "round(-1)",
    "round(method='ceil')", "round(1, 'up')", "default(1)", "tojson", "filesizeformat", "filesizeformat(true)", "pprint",
    "string | length", "urlencode", "escape", "center(5)", "round | int", "float | string", "format", "length", "upper",
    "round(precision=1)", "int(default=1)", "list", "title", "e", "indent", "safe", "sum"]
TEXT_METHODS = [
    "upper()", "lower()", "strip()", "lstrip('H')", "rstrip()", "rstrip('.d')", "split()", "split(',')", "split('l', 1)",
    "split(none, 1)", "split(maxsplit=1)", "rsplit('o', 1)", "rsplit(none, 1)", "rsplit()", "startswith('H')",
    "startswith(('H', 'b'))", "endswith('d')", "endswith('l', 0, 3)", "startswith('e', 1)", "replace('l', 'L')",
    "replace('l', 'L', 1)", "replace('', '.', 2)", "title()", "capitalize()", "swapcase()", "casefold()", "find('o')",
    "find('o', 5)", "find('', 20)", "rfind('o')", "rfind('l', 0, 4)", "index('l')", "rindex('o')", "count('l')",
    "count('')", "count('l', 3)", "isdigit()", "isalpha()", "isalnum()", "isspace()", "isupper()", "islower()", "istitle()",
    "isdecimal()", "isnumeric()", "isascii()", "isidentifier()", "isprintable()", "splitlines()", "splitlines(true)",
    "splitlines(keepends=true)", "partition(' ')", "rpartition('l')", "partition('zz')", "removeprefix('He')",
    "removesuffix('ld')", "zfill(15)", "center(15)", "center(16, '*')", "ljust(14, '.')", "rjust(14)", "expandtabs()",
    "expandtabs(tabsize=4)", "join(['a', 'b'])", "join(words)", "join('xyz')", "join(l)", "format(1)", "format_map(k)",
    "encode()", "append('x')", "strip(1)", "split('')", "upper(1)", "center(15, 'ab')", "nosuch()", "zfill()", "__class__",
    "upper", "startswith(1)", "find(1)", "split().append(1)", "splitlines() | length", "split() | last", "count()"]
LIST_METHODS = ["index(1)", "index(3, 1)", "count(1)", "copy()", "append(1)", "pop()", "index('zz')", "sort()", "extend([1])",
                "count('a')", "insert(0, 1)", "reverse()", "nosuch", "0", "1", "clear"]
DICT_METHODS = ["items()", "keys()", "values()", "get('n')", "get('zz')", "get('zz', 1)", "items() | list", "keys() | list",
                "values() | list", "copy()", "update({})", "pop('n')", "items", "name", "n", "zz", "keys() | sort", "get()",
                "items() | first", "setdefault('a', 1)", "_x", "__len__", "zz.y", "clear()", "get('n', default=1)"]
NUMBER_METHODS = ["real", "imag", "numerator", "denominator", "conjugate()", "bit_length()", "nosuch", "x.y"]
if sys.version_info >= (3, 12):
    NUMBER_METHODS.append("is_integer()")  # of integers too; before, of floats alone
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "iterable", "sequence", "boolean",
         "true", "false", "callable", "odd", "even", "divisibleby(2)", "divisibleby 3", "eq(1)", "equalto('a')", "ne(0)",
         "gt(1)", "lt 3", "ge(2)", "le 2", "greaterthan(1)", "lessthan(1)", "in [1, 'a']", "in('abc')", "lower", "upper",
         "sameas none", "sameas(true)", "filter", "test", "escaped", "nosuchtest", "not none", "not defined", "not in([1])",
         "divisibleby(0)", "string or true", "none and false", "eq 1 or false"]
LOOP = ["loop.index", "loop.index0", "loop.revindex", "loop.revindex0", "loop.first", "loop.last", "loop.length", "loop.depth",
        "loop.previtem", "loop.nextitem", "loop.cycle('odd', 'even')", "loop.cycle(1, 2, 3)", "loop", "loop.nosuch",
        "loop.depth0", "loop.changed(item)", "loop.previtem is defined", "loop.nextitem is undefined", "loop.changed(loop.first)",
        "loop.cycle()", "loop | length"]
CLOSERS = {"upper": "filter", "trim": "filter", "replace": "filter", "indent": "filter"}


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = []      # that the template has set
        self.macros = []
        self.in_loop = False

    def pick(self, options):
        return self.random.choice(options)

    def chance(self, probability):
        return self.random.random() < probability

    # Expressions, by the type that they mostly have.

    def name(self, given):
        if self.names and self.chance(0.25):
            return self.pick(self.names)
        return self.pick(given)

    def slice(self):
        part = lambda: self.pick(["", "", "0", "1", "2", "-1", "-2", "5", "n", "none", "z"])  # noqa: E731
        return "[" + part() + ":" + part() + self.pick(["", "", "", ":", ":-1", ":2", ":z"]) + "]"

    def text(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick(STRINGS) if self.chance(0.4) else self.name(["s", "u", "e", "q", "p", "lines", "num", "d.b", "k.name"])
        return self.pick([
            lambda: f"{self.text(depth - 1)} | {self.pick(TEXT_FILTERS)}",
            lambda: f"{self.text(depth - 1)} | {self.pick(TEXT_FILTERS)}",
            lambda: f"({self.text(depth - 1)}).{self.pick(TEXT_METHODS)}",
            lambda: f"({self.text(depth - 1)}).{self.pick(TEXT_METHODS)}",
            lambda: f"({self.text(0)}){self.slice()}",
            lambda: f"({self.text(0)})[{self.pick(['0', '-1', '3', '99', 'n', 'true', chr(39) + 'upper' + chr(39), '0.0'])}]",
            lambda: f"({self.text(depth - 1)} + {self.text(depth - 1)})",
            lambda: f"({self.text(depth - 1)} ~ {self.any(depth - 1)} ~ {self.number(0)})",
            lambda: f"({self.text(0)} * {self.pick(['2', '0', '-1', 'n', 'true', '1.0'])})",
            lambda: self.percent(depth),
            lambda: f"({self.pick(BRACES)}.format({self.any(depth - 1)}, {self.any(0)}{self.pick(['', ', a=1', ', *l', ', **k'])}))",
            lambda: f"({self.any(depth - 1)} | string)", lambda: f"({self.any(depth - 1)} | tojson)",
            lambda: f"({self.sequence(depth - 1)} | join({self.pick(STRINGS)}))",
            lambda: f"strftime_now({self.pick(STRFTIME)})",
            lambda: f"({self.text(depth - 1)} if {self.condition(depth - 1)} else {self.text(depth - 1)})"])()

    def percent(self, depth):
        values = self.pick([lambda: self.any(depth - 1), lambda: f"({self.any(0)}, {self.any(0)})", lambda: self.number(0),
                            lambda: f"({self.number(0)},)", lambda: "k", lambda: "(6, n)", lambda: "(8, s)", lambda: "(1, f)"])()
        return f"({self.pick(FORMATS)} % {values})"

    def number(self, depth):
        if depth <= 0 or self.chance(0.25):
            if self.chance(0.4):
                return self.pick(["0", "1", "2", "10", "-3", "1_000", "0.5", "1e3", "-2.25", "3.0", "0x10", "0b11", "2.675", "1e-7"])
            return self.name(["n", "z", "neg", "f", "g", "t", "l[0]", "k.n", "big", "huge", "users[0].age"])
        return self.pick([
            lambda: f"({self.number(depth - 1)} {self.pick(['+', '-', '*', '/', '//', '%'])} {self.number(depth - 1)})",
            # Small exponents only: Python computes with integers of any size, for as long as it takes.
            lambda: f"({self.number(0)} ** {self.pick(['2', '0', '-1', '0.5', '3', 'z', 'neg', 't'])})",
            lambda: f"({self.number(depth - 1)} {self.pick(['+', '-', '*', '%'])} {self.number(0)})",
            lambda: f"({self.number(depth - 1)}) | {self.pick(NUMBER_FILTERS)}",
            lambda: f"({self.number(0)}).{self.pick(NUMBER_METHODS)}",
            lambda: f"{self.pick(['-', '+', '- -'])}{self.number(depth - 1)}",
            lambda: f"({self.text(depth - 1)} | length)", lambda: f"({self.sequence(depth - 1)} | length)",
            lambda: f"({self.text(0)} | int)", lambda: f"({self.sequence(depth - 1)} | sum)",
            lambda: f"({self.condition(depth - 1)} + 1)"])()

    def sequence(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.name(["l", "words", "mixed", "empty", "nested", "range(4)", "range(1, 8, 3)", "(1, 2)", "[1, 'a', none]",
                              "[3, 1, 2]", "('x',)", "[]", "()", "range(3, 0, -1)", "d.items()", "k.keys()", "s", "k", "undefined_thing"])
        return self.pick([
            lambda: f"{self.sequence(depth - 1)} | {self.pick(LIST_FILTERS)}",
            lambda: f"{self.sequence(depth - 1)} | {self.pick(LIST_FILTERS)}",
            lambda: f"users | {self.pick(USER_FILTERS)}",
            lambda: f"({self.sequence(0)}){self.slice()}",
            lambda: f"({self.sequence(0)}).{self.pick(LIST_METHODS)}",
            lambda: f"({self.sequence(0)})[{self.pick(['0', '-1', 'n', '1', '1, 2', 'false'])}]",
            lambda: f"({self.sequence(depth - 1)} + {self.sequence(depth - 1)})",
            lambda: f"({self.sequence(0)} * {self.pick(['2', '0', 'n'])})",
            lambda: f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", lambda: f"({self.any(depth - 1)}, {self.any(0)})",
            lambda: f"({self.text(depth - 1)}).split({self.pick(['', STRINGS[10], STRINGS[11]])})",
            lambda: f"({self.mapping(depth - 1)}) | {self.pick(['list', 'items | list', 'dictsort'])}",
            lambda: f"({self.sequence(depth - 1)} | map({self.pick(STRINGS[:2] + [repr(x) for x in ['upper', 'string', 'int', 'abs', 'length', 'first', 'trim']])}) | list)"])()

    def mapping(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.name(["d", "k", "none", "users[0]", "messages[0]", "{'a': 1, 'b': [2]}", "{}", "dict(x=1, y='z')", "{1: 'a', 'b': 2}",
                              "{none: 1, true: 2, 1: 3}", "dict([('a', 1)])", "dict(k, n=3)", "{(1, 2): 3}", "namespace(a=1)"])
        return self.pick([
            lambda: f"{self.mapping(depth - 1)} | {self.pick(DICT_FILTERS)}",
            lambda: f"({self.mapping(depth - 1)}).{self.pick(DICT_METHODS)}",
            lambda: f"({self.mapping(0)})[{self.pick(STRINGS + ['1', 'none', 'n', '(1, 2)', '[1]', chr(39) + 'keys' + chr(39)])}]",
            lambda: "{" + f"{self.pick(STRINGS)}: {self.any(depth - 1)}, 'n': {self.any(0)}" + "}",
            lambda: f"dict(a={self.any(depth - 1)})", lambda: f"namespace(a={self.any(0)}, b=1)"])()

    def any(self, depth):
        if depth <= 0 and self.chance(0.3):
            return self.name(["nil", "t", "no", "missing", "d.missing", "loop", "users", "1", "'x'", "none", "true", "big"])
        choice = self.random.random()
        if self.macros and choice < 0.08:
            return f"{self.pick(self.macros)}({self.any(depth - 1)}{self.pick(['', '', ', 2', ', q=3', ', z=1'])})"
        if choice < 0.14:
            return f"({self.any(depth - 1)} {self.pick(['and', 'or'])} {self.any(depth - 1)})"
        if choice < 0.18:
            return f"({self.any(depth - 1)} if {self.condition(depth - 1)}{self.pick(['', ' else ' + self.any(depth - 1)])})"
        if choice < 0.22:
            return f"({self.any(depth - 1)} | default({self.any(0)}{self.pick(['', ', true'])}))"
        if choice < 0.24:
            return self.pick(["missing.x", "missing()", "missing[0]", "missing + 1", "-missing", "s.x.y", "l.x", "nil.x", "n()",
                              "s()", "raise_exception('no')", "cycler(1, 2).next()", "joiner()()", "lipsum", "dict", "cycler",
                              "'%s' % missing", "missing ~ 1", "not missing", "missing == undefined_thing", "missing in l", "l in missing"])
        return self.pick([self.text, self.text, self.number, self.sequence, self.mapping, self.condition])(depth)

    def condition(self, depth):
        if depth <= 0 and self.chance(0.4):
            return self.pick(["t", "no", "true", "false", "missing", "n", "s", "empty", "nil", "loop.first", "not t"])
        left = self.any(depth - 1)
        operator = lambda: self.pick(["==", "!=", "<", ">", "<=", ">="])  # noqa: E731
        return self.pick([
            lambda: f"{left} is {self.pick(TESTS)}", lambda: f"{left} is {self.pick(TESTS)}",
            lambda: f"{self.number(depth - 1)} {operator()} {self.number(depth - 1)}",
            lambda: f"{self.text(depth - 1)} {operator()} {self.text(0)}",
            lambda: f"{left} {self.pick(['==', '!='])} {self.any(depth - 1)}", lambda: f"{left} {operator()} {self.any(0)}",
            lambda: f"{self.any(0)} {self.pick(['in', 'not in'])} {self.sequence(depth - 1)}",
            lambda: f"{self.text(0)} in {self.text(0)}", lambda: f"{self.text(0)} not in {self.mapping(0)}",
            lambda: f"not {left}", lambda: f"1 < {self.number(0)} {operator()} {self.number(0)}",
            lambda: f"({left}) is {self.pick(TESTS)} {self.pick(['and', 'or'])} {self.any(0)}"])()

    # Statements.

    def tag(self, body):
        """A statement with its dashes, and white space that they and the environment trim."""
        left, right = self.pick(["{%", "{%", "{%", "{%-", "{%+"]), self.pick(["%}", "%}", "%}", "-%}", "+%}"])
        return f"{self.pick(['', '', '', '  ', chr(9)])}{left} {body} {right}{self.pick(['', '', chr(10), chr(10) * 2, '  ' + chr(10)])}"

    def output(self, depth=3):
        return f"{self.pick(['{{', '{{', '{{', '{{-', '{{+'])} {self.any(depth)} {self.pick(['}}', '}}', '}}', '-}}'])}"

    def plain(self):
        return self.pick(["text", " ", "\n", "  \n\t", "{# note #}", "{#- note -#}\n", "  {# a\nb #}\n", "<b>", "}", "{", "\u00e9\n", "|",
                          "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} \n {% x %} {%- endraw %}\n", " \r\n", "%}", "{{ '}}' }}", "\n\n"])

    def inside(self, depth, names=(), loop=False):
        """A body in which more names are known."""
        kept, was = list(self.names), self.in_loop
        self.names += names
        self.in_loop = loop or self.in_loop
        text = self.body(depth)
        self.names, self.in_loop = kept, was
        return text

    def if_statement(self, depth):
        text = self.tag(f"if {self.condition(2)}") + self.body(depth)
        if self.chance(0.3):
            text += self.tag(f"elif {self.condition(2)}") + self.body(depth)
        if self.chance(0.4):
            text += self.tag("else") + self.body(depth)
        return text + self.tag("endif")

    def for_statement(self, depth):
        target, names = self.pick([("item", ["item"]), ("item", ["item"]), ("m", ["m"]), ("a, b", ["a", "b"]), ("a, (b, c)", ["a", "c"]),
                                   ("(a, b)", ["a"]), ("item", ["item.name", "item.age"])])
        values = self.pick([lambda: self.sequence(2), lambda: self.sequence(1), lambda: "users", lambda: "messages", lambda: "d.items()",
                            lambda: "k | items", lambda: "[(1, 2), (3, 4)]", lambda: "[(1, (2, 3))]", lambda: "l | select('odd')",
                            lambda: self.mapping(1), lambda: "words | map('upper')", lambda: "1, 2, 3"])()
        where = f" if {self.condition(1)}" if self.chance(0.25) else ""
        inner = self.inside(depth, names + self.random.sample(LOOP, 3), True)
        if self.chance(0.3):
            inner += (self.tag(f"if {self.condition(1)}") + self.tag(self.pick(["break", "continue"])) + self.tag("endif") +
                      self.inside(depth - 1, names, True))
        text = self.tag(f"for {target} in {values}{where}") + inner
        if self.chance(0.25):
            text += self.tag("else") + self.body(depth - 1)
        return text + self.tag("endfor")

    def recursive_statement(self, depth):
        inner = self.inside(depth - 1, ["item.v", "loop.depth", "loop.index", "loop.last"], True)
        deeper = self.pick(["item.kids", "item.kids | default([])", "item.kids or []", "item.kids[1:]"])
        guard = self.tag("if item.kids") + "{{ loop(" + deeper + ") }}" + self.tag("endif")
        where = self.pick(["", "", " if item.v != 2"])
        return self.tag(f"for item in tree{where} recursive") + inner + guard + self.tag("endfor")

    def set_statement(self, depth):
        choice = self.random.randrange(8)
        name = self.pick(["x", "y", "s", "n", "w"])
        if choice < 3:
            text = self.tag(f"set {name} = {self.any(3)}")
        elif choice == 3:
            text = self.tag(f"set {name}, y2 = {self.any(2)}, {self.any(1)}")
        elif choice == 4:
            text = self.tag(f"set {name} {self.pick(['', '| upper', '| trim | length', '| replace(1, 2)'])}") + self.body(depth - 1) + self.tag("endset")
        elif choice == 5:
            text = self.tag(f"set ns = namespace(a={self.any(1)}, b='x')") + self.tag(f"set ns.a = {self.any(2)}") + "{{ ns.a }}{{ ns.c }}"
            name = "ns.a"
        elif choice == 6:
            text = self.tag("set ns = namespace(n=0, found=false)") + self.for_namespace() + "{{ ns.n }}{{ ns.found }}"
            name = "ns.n"
        else:
            text = self.tag(f"set {self.pick(['ns.b', 's.x', 'missing.y', 'ns.a, x'])} = {self.any(1)}")
        self.names.append(name)
        return text

    def for_namespace(self):
        return (self.tag(f"for item in {self.sequence(1)}") + self.tag("set ns.n = ns.n + 1") + self.tag(f"set x = {self.any(1)}") +
                "{{ x }}" + self.tag("if item == 1") + self.tag("set ns.found = true") + self.tag("endif") + self.tag("endfor"))

    def macro_statement(self, depth):
        name = self.pick(["f", "render", "show"])
        parameters = self.pick(["p", "p, q=1", "p, q=s", "p=none, q=p", "p, q='x', r=q"])
        extra = self.pick(["", "", "", "{{ varargs }}", "{{ kwargs }}", "{{ caller() if caller }}", "{{ caller(p) }}", "{{ caller is defined }}"])
        was, self.in_loop = self.in_loop, False
        kept = list(self.names)
        self.names += ["p", "q"]
        body = "{{ p }}" + self.pick(["", "{{ q }}"]) + extra + self.body(depth - 1)
        self.names, self.in_loop = kept, was
        text = self.tag(f"macro {name}({parameters})") + body + self.tag("endmacro")
        self.macros.append(name)
        if self.chance(0.3):
            arguments = self.pick(["", "(v)", "(v, w=2)", "()"])
            text += self.tag(f"call{arguments} {name}({self.any(1)})") + self.pick(["", "{{ v }}", "body"]) + self.body(depth - 1) + self.tag("endcall")
            return text
        call = f"{name}({self.any(2)}{self.pick(['', ', q=1', ', 2', ', 2, 3', ', z=1', ', *l', ', **k'])})"
        return text + "{{ " + call + self.pick(["", " | upper", " | length", " ~ 1"]) + " }}"

    def block_statement(self, depth):
        opener, closer = self.pick([("filter upper", "filter"), ("filter trim | replace('a', 'b')", "filter"), ("filter indent(2)", "filter"),
                                    ("generation", "generation"), (f"with w = {self.any(1)}", "with"), ("with a = 1, b = a", "with"),
                                    ("filter length", "filter"), ("with", "with"), ("call nosuch()", "call")])
        in_loop = self.in_loop
        if closer in ("generation", "call"):
            self.in_loop = False
        inner = self.inside(depth - 1, ["w", "a"] if closer == "with" else [])
        self.in_loop = in_loop
        return self.tag(opener) + inner + self.tag("end" + closer)

    def statement(self, depth):
        if depth <= 0:
            return self.pick([self.output, self.output, self.plain])()
        return self.random.choices(
            [self.output, self.plain, lambda: self.set_statement(depth), lambda: self.if_statement(depth - 1),
             lambda: self.for_statement(depth - 1), lambda: self.macro_statement(depth), lambda: self.block_statement(depth),
             lambda: self.recursive_statement(depth), self.jump, lambda: self.tag(f"print {self.any(1)}, {self.any(0)}")],
            weights=[34, 22, 16, 10, 11, 5, 5, 1.5, 1, 0.5])[0]()

    def jump(self):
        return self.tag(self.pick(["break", "continue"])) if self.in_loop or self.chance(0.02) else self.plain()

    def body(self, depth):
        return "".join(self.statement(depth) for _ in range(self.random.choice([1, 1, 1, 2, 2, 3]))) if depth > 0 else self.statement(0)

    def broken(self, text):
        """A small accident."""
        at = self.random.randrange(len(text) + 1)
        return self.pick([text[:at] + text[at + 1:], text[:at] + self.pick(list("{}%()[]'\"|.,:=-~ \n#!")) + text[at:], text[:at]])

    def template(self):
        self.names, self.macros, self.in_loop = [], [], False
        kind = self.random.random()
        if kind < 0.5:
            text = "{{ " + self.any(3) + " }}"
        elif kind < 0.6:
            text = "{{ " + self.any(2) + " }}|{{ " + self.any(1) + " }}"
        else:
            text = self.body(self.pick([1, 2, 2, 3]))
        return self.broken(text) if self.chance(0.03) else text
