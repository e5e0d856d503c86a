"""Whether a mode that failed may be the fault of compiled code, which is then removed, once."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from torch._dynamo.exc import ShortenTraceback, TorchDynamoException
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from service.measure.compiled_library import BuildError, compiled_library
from service.step.compile_cache import CacheRefused, discard, has_code
from service.step.device_errors import is_device_lost, is_out_of_memory
from service.step.kept_records import keep_record, read_record
from service.step.warnings_log import warn

Result = TypeVar("Result")


class CacheBroken(Exception):
    """A mode failed on compiled code from before this process, where it has never failed without.

    That code has been removed.
    """


class CacheRetry:
    """The compiled code of one model in `code` as this process found it; `key` names what it compiles.

    A library that is cut off shows in many ways (it does not load, a compiler is tried with other options, a
    header is missing), and torch remembers what it tried until its process ends. So the rule is not about
    errors: what fails on code from before is tried again in a new process, without that model's code. What
    fails there too is recorded, so that no later start removes it again. That is asked of what a mode needs
    to serve, once per mode: a proof that fails later ends no engine that serves. Nor is it asked of
    what no code can be the reason of: a model that cannot be traced, a compiler that can compile nothing.
    """

    def __init__(self, code: Path, key: str) -> None:
        self._had_code = has_code(code)
        self._code = code
        self._file = code.parent / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-failed.json"
        self._failed = read_record(self._file, list[str]) or []

    def watched(self, mode: str, capture: Generator[None, None, Result]) -> Generator[None, None, Result]:
        """Do `capture`, which compiles what `mode` serves with.

        Raises what it raises; BuildError, with the remedy, where nothing can be compiled; or CacheBroken.
        """
        try:
            return (yield from capture)
        except Exception as error:
            if _is_of_the_model(error) or is_device_lost(error) or is_out_of_memory(error):
                raise
            if reason := cannot_compile(self._code.parent):
                raise BuildError(f"{reason} ({type(error).__name__}: {error})") from error
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
                discard(self._code)
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


def _is_of_the_model(error: Exception) -> bool:
    """Whether it was raised in tracing the model, before a compiler or its cache was asked."""
    traced = isinstance(error, TorchDynamoException) and not isinstance(error, ShortenTraceback)
    return traced or isinstance(error, ConstraintViolationError)


def cannot_compile(folder: Path) -> str | None:
    """Why no C++ can be compiled in `folder` and loaded from it, with the remedy; None where it can."""
    try:
        with TemporaryDirectory(dir=folder) as trial:
            source = 'extern "C" int trial() { return 0; }'
            ctypes.CDLL(str(compiled_library(Path(trial), "trial", source, compiler=get_cpp_compiler())))
    except InvalidCxxCompiler:
        return "the C++ compiler is not there: install g++, or set CXX to one that is"
    except (BuildError, OSError) as error:
        return f"what is compiled cannot be made or loaded: {error}"
    return None
