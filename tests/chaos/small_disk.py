"""A disk of a few megabytes that can be full: a tmpfs that only the commands run within it see.

It is mounted in a mount namespace of its own, as root, or in a user namespace where root may not be had, and
goes with the last process in it. A write beyond its size fails with ENOSPC, as on any disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.fault import NotPossible

MEGABYTE = 2**20
BLOCK = 4096

_MOUNT = 'mount -t tmpfs -o "size=$2,mode=0700" launchbound "$1" && echo mounted && exec cat'
"""The keeper: as long as its standard input is open, the namespace stays."""


class SmallDisk:
    """The disk, whose folder `at` is only seen `within`; from outside the same files are at `seen`."""

    def __init__(self, at: Path, keeper: int, with_user: bool) -> None:
        self.at = at
        self.seen = Path(f"/proc/{keeper}/root{at}")
        self._filler = self.seen / "filler"
        self._enter = ["nsenter", f"--target={keeper}", "--mount"]
        if with_user:
            self._enter += ["--user", "--preserve-credentials"]

    def within(self, command: list[str]) -> list[str]:
        """The command line that runs `command` where the disk is seen, in this process's working directory.

        It becomes `command`, so that pid and parent stay.
        """
        return [*self._enter, "--", "env", f"--chdir={Path.cwd()}", *command]

    def fill(self, leave_bytes: int = 0) -> None:
        """Write until nothing more fits, then give back `leave_bytes`."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(BLOCK))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            size = file.tell() // BLOCK * BLOCK
            file.truncate(max(0, size - leave_bytes))

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """The room that is left."""
        found = os.statvfs(self.seen)
        return found.f_bavail * found.f_frsize


@contextmanager
def small_disk(at: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk at the folder `at`. Raises NotPossible where this user may not mount one."""
    at.mkdir(parents=True, exist_ok=True)
    with_user = os.geteuid() != 0
    options = ["--user", "--map-root-user"] if with_user else []
    missing = [program for program in ("unshare", "nsenter") if shutil.which(program) is None]
    if missing:
        raise NotPossible(f"no small disk here: {', '.join(missing)} missing (util-linux)")
    keeper = subprocess.Popen(
        ["unshare", *options, "--mount", "--", "sh", "-c", _MOUNT, "sh", str(at), str(size_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        try:
            if keeper.stdout.readline() != "mounted\n":
                said = keeper.stderr.read().strip().splitlines() or ["no reason given"]
                raise NotPossible(f"no small disk here: {said[-1]}; run as root, or allow user namespaces")
            yield SmallDisk(at, keeper.pid, with_user)
        finally:
            keeper.stdin.close()
