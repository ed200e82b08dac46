"""Names that more than one source of a room gives to something of its own.

The sources of a test binary are compiled as one unit, those of a room too under a sanitizer. A name in
an unnamed namespace that another of them declares as well is then declared twice, or is one more
overload, which a call may switch to without a word; and which sources meet is chance. So a source's own
names are nobody else's in its room. Read from the text, without a compiler; standard library only.
"""

import collections
import re

# Comments, directives, strings and characters (but not the ' of 1'000).
NO_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\.|[^\\\n])*"""
    r"""|R"(?P<fence>[^(\s]*)\(.*?\)(?P=fence)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])*'""",
    re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"[A-Za-z_]\w*|::|\S")
WORD = re.compile(r"[A-Za-z_]\w*$")
SCOPE = re.compile(r"(?:inline )?namespace((?: \w+)?(?: :: \w+)*) \{$|extern \{$")
OPENING, CLOSING = set("({["), set(")}]")
TYPES = {"struct", "class", "union", "enum"}
WITH_ARGUMENTS = {"alignas", "decltype", "__attribute__", "requires"}

# scope: the named namespaces, "rudder::cache". is_own: no other source is meant to see it. alias: the text
# of a using-declaration or an alias, which others may repeat.
Name = collections.namedtuple("Name", "scope name line is_own alias")


def tokens_of(text):
    """[(token, line)] of the code in the text."""
    code = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    tokens, line, at = [], 1, 0
    for match in TOKEN.finditer(code):
        line += code.count("\n", at, match.start())
        at = match.start()
        tokens.append((match[0], line))
    return tokens


def after_group(tokens, at, opening=OPENING, closing=CLOSING):
    """Where what opens at `at` with a bracket has been closed."""
    depth = 0
    while at < len(tokens):
        depth += (tokens[at][0] in opening) - (tokens[at][0] in closing)
        at += 1
        if depth == 0:
            break
    return at


def after_declaration(tokens, at):
    """Where the declaration that begins at `at` is over: behind its semicolon or its function's body."""
    has_arguments = has_value = is_operator = False
    if tokens[at][0] == "template":
        at = after_group(tokens, at + 1, "<", ">")
    while at < len(tokens) and tokens[at][0] != ";":
        token = tokens[at][0]
        if token not in OPENING:
            is_operator = is_operator or token == "operator"
            has_value = has_value or (token == "=" and not has_arguments and not is_operator)
            at += 1
            continue
        has_arguments = has_arguments or token == "("
        at = after_group(tokens, at)
        if token == "{" and has_arguments and not has_value:
            if at == len(tokens) or tokens[at][0] not in "{,":  # it was no member's initialiser
                return at
    return at + 1


def declarator(tokens):
    """The tokens up to the parameters, the value or the body, without attributes and template arguments:
    the last is what is declared."""
    kept, at = [], 0
    while at < len(tokens):
        token = tokens[at][0]
        following = tokens[at + 1][0] if at + 1 < len(tokens) else ""
        if token in WITH_ARGUMENTS and following == "(":
            kept.append(tokens[at])
            at = after_group(tokens, at + 1)
        elif token == "<":
            at = after_group(tokens, at, "<", ">")
        elif token == "[" and following == "[":
            at = after_group(tokens, at)
        elif token == "(" and following == "*":  # a pointer to a function
            at += 2
        elif token in "()[{=;:,":
            break
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def name_in(tokens, scope, is_unnamed):
    """What a declaration introduces into its namespace, or None."""
    words = [word for word, _ in tokens]
    if words[0] in ("using", "namespace"):
        if words[1] == "namespace":
            return None
        at = 1 if "=" in words else -2
        return Name(scope, words[at], tokens[at][1], True, " ".join(words))
    kept = declarator(tokens)
    if TYPES & {word for word, _ in kept}:
        kept = [each for each in kept if each[0] != "final"]
    words = [word for word, _ in kept]
    if "operator" in words or len(kept) < 2 or words[-2] == "::" or not WORD.match(words[-1]):
        return None  # also a macro's call, or a member that a class has declared
    return Name(scope, *kept[-1], is_unnamed or "static" in words, None)


def opened_at(tokens, at):
    """What SCOPE says of the words at `at`, and where its inside begins."""
    end = at
    while end < len(tokens) and (WORD.match(tokens[end][0]) or tokens[end][0] == "::"):
        end += 1
    return SCOPE.match(" ".join(word for word, _ in tokens[at:end + 1])), end + 1


def names_in(text):
    """The names that a source or header declares at the scope of its namespaces."""
    tokens, at, scopes = tokens_of(text), 0, []
    while at < len(tokens):
        if tokens[at][0] in "};":
            if tokens[at][0] == "}" and scopes:
                scopes.pop()
            at += 1
            continue
        opened, inside = opened_at(tokens, at)
        if opened:
            scopes.append(opened[1])  # "": unnamed; None: extern "C"
            at = inside
            continue
        end = after_declaration(tokens, at)
        scope = "::".join(each.replace(" ", "") for each in scopes if each)
        name = name_in(tokens[at:end], scope, "" in scopes)
        if name:
            yield name
        at = end


def room_of(path):
    """What is compiled together at the most: a room, the apps, a folder of tests."""
    folders = path.parts[:-1]
    return folders[:3] if folders[0] == "src" else folders[:1] if folders[0] == "apps" else folders


def is_binary(path):
    """Under tests/ a test is a binary of its own."""
    return path.parts[0] == "tests" and path.name.endswith("_test.cpp")


def clash(word, declarations):
    """The error of one name in one namespace of a room, or None; declarations: [(path, Name)]."""
    first = {}  # of each file
    for path, name in declarations:
        if path not in first or (name.is_own and not first[path].is_own):
            first[path] = name
    aliases = {name.alias for name in first.values()}
    owners = [path for path, name in first.items() if name.is_own]
    if len(first) == 1 or not owners or all(map(is_binary, first)) or (len(aliases) == 1 and None not in aliases):
        return None
    others = ", ".join(f"{path}:{name.line}" for path, name in first.items() if path != owners[0])
    return f"{owners[0]}:{first[owners[0]].line}: {word} is this source's own, but also in {others}"


def errors(files):
    """The clashes of sources and headers; files: [(path, text)]."""
    rooms = collections.defaultdict(list)
    for path, text in files:
        for name in names_in(text):
            rooms[room_of(path), name.scope, name.name].append((path, name))
    return list(filter(None, (clash(word, found) for (_, _, word), found in rooms.items())))
