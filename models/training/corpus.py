"""The training text: the Python standard library's source, split into training and held-out files."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SKIPPED = {
    "site-packages", "dist-packages", "test", "tests", "idlelib", "idle_test", "lib-dynload", "__pycache__",
    "encodings", "pydoc_data", "turtledemo",
}  # fmt: skip
"""Third-party code, what some installations leave out, and tables that are data rather than code."""
_HELD_OUT_SHARE = 0.05


class CorpusError(RuntimeError):
    """There is no text to train on; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts of whole files in the order of their paths: a training and a held-out set."""

    training: tuple[str, ...]
    held_out: tuple[str, ...]

    @property
    def held_out_bytes(self) -> int:
        """Length of all held-out texts, UTF-8."""
        return sum(len(text.encode()) for text in self.held_out)


def is_held_out(path: str) -> bool:
    """Whether the file at `path` (relative, with slashes) is kept out of training: by a hash of its path."""
    number = int.from_bytes(hashlib.sha256(path.encode()).digest()[:8], "big")
    return number / 2**64 < _HELD_OUT_SHARE


def read(root: Path | None = None) -> Corpus:
    """The standard library below `root` (default: this interpreter's), in the order of its paths.

    Raises CorpusError where no source is installed.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    training: list[str] = []
    held_out: list[str] = []
    for path, text in _files(root):
        (held_out if is_held_out(path) else training).append(text)
    if not training or not held_out:
        raise CorpusError(
            f"no Python source below {root}: install the interpreter's standard library as source"
        )
    return Corpus(tuple(training), tuple(held_out))


def _files(root: Path) -> Iterator[tuple[str, str]]:
    seen: set[bytes] = set()
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if _SKIPPED.intersection(path.parts) or path.parts[0].startswith("config-"):
            continue
        content = file.read_bytes()
        digest = hashlib.sha256(content).digest()
        if digest in seen or not content.strip():
            continue
        seen.add(digest)
        try:
            yield path.as_posix(), content.decode()
        except UnicodeDecodeError:
            continue  # a few files declare another encoding
