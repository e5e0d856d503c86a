"""The folder of compiled code and small records: private to this user, or refused."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import torch

from models.opening import architecture_hash
from service.machine import processor_facts

_CPU_KIND = ("model name", "cpu family", "model", "flags", "Features", "CPU part")
"""Facts of /proc/cpuinfo: code is compiled for the processor at hand, and may not run on another one."""

HEADERS = "precompiled_headers"
"""The folder within `compile_cache` of 150 MB that all models share."""


class CacheRefused(ValueError):
    """A cache folder that cannot be used or trusted; the message has the remedy."""


def compile_cache(cache_folder: str) -> Path:
    """The private folder of compiled code in `cache_folder`, one per version of torch, Python and processor,
    named as torch's builds can take it.

    What lies there are pickles and libraries. Raises CacheRefused, with the remedy, where another user could
    have written them, the folder cannot be used, or torch could not build or load code there.
    """
    outer = Path(cache_folder).resolve()  # a link to a larger disk is common
    folder = outer / f"compiled-{_key()}"
    try:
        for one in (outer, folder):  # one by one: parents that are made on the way have the umask's mode
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_writable_by_others(outer)
        _refuse_unless_private(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            _refuse_unless_executable(outer, file.fileno())
        return plain_path(folder)
    except OSError as error:
        raise CacheRefused(
            f"the cache folder {outer} cannot be used ({error.strerror}): "
            "set LAUNCHBOUND_CACHE_FOLDER to a folder that you can write to"
        ) from error


def code_of(cache_folder: str, model: str) -> Path:
    """The folder within `compile_cache` of what is compiled of models configured as `model` is."""
    folder = compile_cache(cache_folder) / f"model-{architecture_hash(model)}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def has_code(code: Path) -> bool:
    """Whether anything has been compiled into this folder of a model."""
    return code.is_dir() and any(code.iterdir())


def discard(code: Path) -> None:
    """Remove what was compiled of one model, and its headers. Raises CacheRefused where the disk refuses."""
    try:
        for one in (code, code.parent / HEADERS):
            if one.exists():
                shutil.rmtree(one)
        code.mkdir(mode=0o700)
    except OSError as error:
        raise CacheRefused(f"{code} cannot be removed ({error.strerror}): remove it") from error


def _refuse_writable_by_others(outer: Path) -> None:
    """Who can write to the folder around it can put another one in its place; not so in one like /tmp."""
    status = outer.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise CacheRefused(
            f"the cache folder {outer} belongs to user {status.st_uid}, who could put code there that "
            f"would run as user {os.geteuid()}: set LAUNCHBOUND_CACHE_FOLDER to a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        raise CacheRefused(
            f"other users may write to the cache folder {outer}, whose compiled code is loaded: "
            f"`chmod go-w {outer}`, or set LAUNCHBOUND_CACHE_FOLDER to a private folder"
        )


def _refuse_unless_private(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise CacheRefused(f"{folder} is a link or a file, where compiled code is to lie: remove it")
    if status.st_uid != os.geteuid():
        raise CacheRefused(
            f"{folder} holds compiled code of user {status.st_uid}, which would run as user {os.geteuid()}: "
            "remove it, or set LAUNCHBOUND_CACHE_FOLDER to a folder of your own"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise CacheRefused(
            f"other users may enter {folder}, whose compiled code is loaded: remove it, and all is compiled "
            f"again, or `chmod 700 {folder}` where nobody else has written to it"
        )


def _refuse_unless_executable(outer: Path, file: int) -> None:
    """What is compiled is loaded from here, which a file system that is mounted `noexec` refuses."""
    os.ftruncate(file, 1)
    try:
        mmap.mmap(file, 1, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError:
        raise CacheRefused(
            f"nothing that lies in the cache folder {outer} may be run (it is mounted noexec): "
            "set LAUNCHBOUND_CACHE_FOLDER to a folder on another file system"
        ) from None


def _key() -> str:
    facts = processor_facts()
    parts = [str(torch.__version__), sys.version, *(facts.get(key, "") for key in _CPU_KIND)]
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]


_PLAIN = re.compile(r"[\w@%+=./-]+")
"""What needs no quotes, neither in a command nor in the code that torch writes."""

_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def plain_path(path: Path) -> Path:
    """`path`, or a link to it where that has a blank, a quote or the like: torch joins a build's words with
    blanks. The link is the same in every process, since torch looks for compiled code by the commands that
    made it. Raises ValueError, with the remedy, where no link can be made.
    """
    if _PLAIN.fullmatch(str(path)):
        return path
    for place in (*_PLACES, tempfile.gettempdir()):
        folder = Path(place, f"launchbound.links-{os.geteuid()}")
        link = folder / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        with suppress(OSError):
            if not _PLAIN.fullmatch(place) or not _private(folder):
                continue
            if not link.is_symlink():
                with suppress(FileExistsError):  # another process was faster
                    link.symlink_to(path)
            return link
    raise ValueError(
        f"{str(path)!a} has characters that torch's builds cannot take, and there is no folder for a "
        "link to it: free /tmp or set TMPDIR, or use a path of letters, digits, '-', '_' and '.' only"
    )


def _private(folder: Path) -> bool:
    """Whether `folder`, made where it is missing, is this user's alone: links in it name code to load."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and not status.st_mode & 0o077


Record = TypeVar("Record")


def record_file(folder: Path, key: str, name: str) -> Path:
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-{name}.json"


def read_record(file: Path, kind: type[Record]) -> Record | None:
    """The record in `file`; None where there is none. One that cannot be read is removed and reported."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        warn(f"{file} cannot be read ({error}) and is made anew")
        file.unlink(missing_ok=True)
        return None


def keep_record(file: Path, value: object) -> None:
    """Write `value` to `file`, of which no reader sees a part; where the disk refuses, that is reported."""
    temporary = file.with_suffix(f".{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(value))
        temporary.replace(file)
    except OSError as error:
        warn(f"{file} was not kept: {error.strerror}")
        temporary.unlink(missing_ok=True)


def warn(text: str) -> None:
    """Write a line to standard error, unless a full disk refuses it as well."""
    with suppress(OSError):
        print(f"launchbound: {text}", file=sys.stderr, flush=True)


REMOVED: dict[str, int] = {}
"""File descriptors of libraries that this process runs, by the paths from which they are removed."""


def keep_open(library: Path) -> None:
    """So that its functions can be named once it is removed."""
    REMOVED[str(library.resolve())] = os.open(library, os.O_RDONLY | os.O_CLOEXEC)
