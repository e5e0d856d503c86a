"""Whether a mode that failed may be the fault of the compile cache, which is then emptied, once."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

from torch._dynamo.exc import Unsupported

from service.step.compile_cache import CacheRefused, compiled_code, discard
from service.step.device_errors import is_device_lost, is_out_of_memory
from service.step.kept_records import keep_record, read_record
from service.step.warnings_log import warn

Result = TypeVar("Result")


class CacheBroken(Exception):
    """A mode failed on compiled code from before this process, where it has never failed without.

    That code has been removed.
    """


class CacheDoubt:
    """The compile cache of `folder` as this process found it; `key` names what it compiles.

    A library that is cut off shows in many ways (it does not load, a compiler is tried with other options, a
    header is missing), and torch remembers what it tried until its process ends. So the rule is not about
    errors: what fails on code from before is tried again in a new process, from an empty cache. What fails
    there too is recorded, so that no later start empties the cache for it. That is asked of what a mode needs
    to serve, once per mode: a twin or a proof that fails later ends no engine that serves.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._had_code = bool(compiled_code(folder))
        self._folder = folder
        self._file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-failed.json"
        self._failed = read_record(self._file, list[str]) or []

    def watched(self, mode: str, capture: Generator[None, None, Result]) -> Generator[None, None, Result]:
        """Do `capture`, which compiles what `mode` serves with. Raises what it raises, or CacheBroken."""
        try:
            return (yield from capture)
        except Unsupported:
            raise  # of the model's code, which no cache changes
        except Exception as error:
            if not is_device_lost(error) and not is_out_of_memory(error):
                self.failed(mode)
            raise

    def judged(self, mode: str, passed: bool) -> None:
        """What `mode` serves with was compiled, and `passed` the check of its numbers, or did not.

        A damaged library may load and compute something else. Raises what `failed` raises.
        """
        if passed:
            self.succeeded(mode)
        else:
            self.failed(mode)

    def failed(self, mode: str) -> None:
        """`mode` failed. Removes the code, and raises CacheBroken, where that may be why."""
        if mode in self._failed:
            return
        if self._had_code:
            try:
                discard(self._folder)
            except CacheRefused as refusal:
                warn(str(refusal))  # without that there is nothing to try again
                return
            raise CacheBroken(f"mode {mode} failed on compiled code of an earlier start")
        self._failed.append(mode)
        keep_record(self._file, self._failed)

    def succeeded(self, mode: str) -> None:
        """`mode` was compiled, and computes what it must."""
        if mode in self._failed:
            self._failed.remove(mode)
            keep_record(self._file, self._failed)
