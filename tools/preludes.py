"""Precompiled headers for the header check: which are worth making, and which one a header may use.

A prelude is a set of headers. A header of ours may be compiled behind it only if it includes all of them,
itself or by way of others. So a prelude gives a header no name that it would not have without. Headers of
ours that are in preludes are checked by themselves as well.
"""

import os
import re

DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(include|define|if|endif)\w*[ \t]*(\S+)?", re.M)
# What a compile costs, in bytes of the libraries' headers that it reads: a byte of ours costs more, since
# it instantiates their templates; a prelude is written as well; a process costs something by itself.
OURS = 20
WRITING = 1.4
PROCESS = 300_000


def library_headers(texts):
    """The <headers> that files with these texts include in any compile, so not below an #if. None where what
    they include cannot be told so: one of ours below an #if, or behind a macro that is not RUDDER_*."""
    found, depth = set(), 0
    for text in texts:
        for directive, word in DIRECTIVE.findall(text):
            if directive == "if":
                depth += 1
            elif directive == "endif":
                depth -= 1
            elif directive == "define" and not word.startswith("RUDDER_"):
                return None
            elif directive == "include" and word.startswith('"') and depth > 0:
                return None
            elif directive == "include" and word.startswith("<") and depth == 0:
                found.add(word)
    return frozenset(found)


def file_sizes(depends):
    """{path: bytes} of the files that a compiler's answer to -M names."""
    paths = [word for word in depends.split()[1:] if word != "\\"]
    return {path: os.path.getsize(path) for path in paths if path != "-"}


class Choice:
    """Picks preludes: again and again the one that saves most of what is still read, as long as one saves
    more than it costs."""

    def __init__(self, libraries, ours, files):
        """`libraries`: {header: its library headers}. `ours`: {header: those of ours that it includes, and
        itself}. `files`: {library header: {path: bytes} of all that it reads}. Headers are paths."""
        self._files = files
        self._size_of = {path: path.stat().st_size for paths in ours.values() for path in paths}
        self._candidates = {}
        for header in libraries:
            self._add(libraries[header])
            self._add(libraries[header] | ours[header])  # for who includes this header
        self._users = {names: [header for header in libraries
                               if names <= libraries[header] | ours[header] - {header}]
                       for names in self._candidates}
        self.prelude_of = dict.fromkeys(libraries)
        self._saved = dict.fromkeys(libraries, 0)
        self._choose()

    def _add(self, names):
        read = {}
        for name in names:
            read.update(self._files.get(name) or {name: OURS * self._size_of.get(name, 0)})
        self._candidates[names] = sum(read.values())

    def _gain(self, names):
        size = self._candidates[names]
        return sum(max(0, size - self._saved[header]) for header in self._users[names]) - WRITING * size - PROCESS

    def _choose(self):
        while self._candidates:
            gain, _, best = max((self._gain(names), sorted(map(str, names)), names) for names in self._candidates)
            if gain <= 0:
                return
            size = self._candidates.pop(best)
            for header in self._users[best]:
                if size > self._saved[header]:
                    self.prelude_of[header], self._saved[header] = best, size
