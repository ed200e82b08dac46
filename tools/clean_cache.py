"""What a check found clean stays clean while nothing that it read has changed.

A file is known by a digest of the check, its flags, its own text and that of every header of ours that
it includes, directly or not. The digests lie in the user's cache folder and serve every checkout. A
machine without that folder checks everything.
"""

import functools
import hashlib
import os
import pathlib
import re

from compile_commands import ROOT

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
MOST_DIGESTS = 20000


@functools.cache
def _text(path):
    return path.read_bytes() if path.is_file() else None


@functools.cache
def _included(path):
    """The files of ours that this one includes directly."""
    found = []
    for name in INCLUDE.findall(text_of(path)):
        for folder in (ROOT / "src", path.parent, ROOT / "apps", ROOT / "tests"):
            if _text(folder / name) is not None:
                found.append(folder / name)
                break
    return found


def text_of(path):
    return _text(path).decode()


def closure(path):
    """The file and every file of ours that it includes, directly or not."""
    seen, waiting = {path}, [path]
    while waiting:
        for other in _included(waiting.pop()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return sorted(seen)


class CleanCache:
    def __init__(self, check, version):
        """`check`: the name of its file of digests. `version`: of the tool and its settings."""
        root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        self._path = root / "rudder" / f"{check}.clean"
        self._version = version
        self._known = self._path.read_text().split() if self._path.exists() else []
        self._clean = set(self._known)

    def digest(self, source, flags):
        """`source`: path relative to the repository's root."""
        words = [self._version, *(flag.replace(str(ROOT), "") for flag in flags)]
        hasher = hashlib.sha256("\0".join(words).encode())
        for path in closure(ROOT / source):
            text = _text(path)
            hasher.update(f"{path.relative_to(ROOT)}\0{len(text)}\0".encode())
            hasher.update(text)
        return hasher.hexdigest()

    def is_clean(self, digest):
        return digest in self._clean

    def add(self, digests):
        """Called from any thread; `save` writes what was added."""
        self._known.extend(digests)

    def save(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = list(dict.fromkeys(reversed(self._known)))[:MOST_DIGESTS]
        partial = self._path.with_suffix(f".{os.getpid()}")
        partial.write_text("\n".join(reversed(kept)) + "\n")
        partial.replace(self._path)
