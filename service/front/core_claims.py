"""Says where the engines of two services share cores: each would disturb what the other measures.

A core is claimed by a name in Linux's abstract socket space, which goes with the process that holds it.
Services in containers do not see each other's.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable


class CoreClaims:
    """The cores of one service's engine, or of what `of` names, claimed while this object is open."""

    def __init__(self, cores: Iterable[int], of: str = "engine") -> None:
        self._held: list[socket.socket] = []
        self._unknown: str | None = None
        self.shared: list[int] = []
        """Those that another one has."""
        for core in cores:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                claim.bind(f"\0launchbound-{of}-core-{core}")
            except OSError as error:
                claim.close()
                if error.errno == errno.EADDRINUSE:
                    self.shared.append(core)
                else:  # as in a sandbox without such sockets: no reason not to serve
                    self._unknown = str(error)
            else:
                self._held.append(claim)

    @property
    def held(self) -> bool:
        """Whether all of the cores are known to be no other's."""
        return not self.shared and self._unknown is None

    @property
    def warning(self) -> str | None:
        """What to say where cores are shared, or may be; None where they are not."""
        if not self.shared:
            what = "whether another service's engine runs on the same cores is not known"
            return None if self._unknown is None else f"{what}: {self._unknown}"
        cores = ", ".join(map(str, self.shared))
        return (
            f"the engine of another service runs on core {cores} too, and each slows the other down: give "
            "this one other cores by LAUNCHBOUND_ENGINE_CPUS, or half of them by LAUNCHBOUND_CORES=lower"
        )

    def close(self) -> None:
        """Give the cores back."""
        for claim in self._held:
            claim.close()
