"""Names of a user's own modules: `package.module:factory`, `path/to/file.py:factory`. Without torch."""

from __future__ import annotations

from pathlib import Path


def names_module(name: str) -> bool:
    """Whether `name` stands for a factory of the user's own, also where it lacks a part.

    A folder keeps its meaning, whatever its name; so do Hugging Face's names.
    """
    if name.startswith("hf:") or Path(name).is_dir():
        return False
    return ":" in name or name.endswith(".py")


def split_name(name: str) -> tuple[str, str]:
    """The module or file of `name`, and the factory in it: '' where none is named."""
    source, colon, factory = name.rpartition(":")
    return (source, factory) if colon else (name, "")
