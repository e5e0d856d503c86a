"""`peers.json`: everything that a comparison with rivals measured, row by row."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from loadtests.run.run_file import DocumentFile

PEERS_FILE = "peers.json"
FORMAT_VERSION = 1


class PeersError(RuntimeError):
    """A comparison that cannot be made; the message names the remedy."""


class Contestant(msgspec.Struct, kw_only=True):
    """A mode of the service, or a runtime.

    `outside_pytorch`: one would leave PyTorch for it. `effective` is what a mode ran as. `unavailable` says
    why it took no part, or from when on; None: it took part to the end.
    """

    name: str
    kind: Literal["mode", "runtime"]
    outside_pytorch: bool = False
    effective: str | None = None
    versions: dict[str, str] = {}
    settings: dict[str, Any] = {}
    unavailable: str | None = None


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """The timed calls of one contestant at one batch size in one round: seconds from prompt to new tokens.

    `difference` says how its tokens differ from the reference; None: they do not.
    """

    round: int
    contestant: str
    batch: int
    seconds: list[float]
    difference: str | None = None


class PeersRun(msgspec.Struct, kw_only=True):
    """A whole comparison. `engine` is that of GET /v1/modes; `cpus` are its cores, and the rivals'.

    `finished` counts the rounds that ended. `ended` None: it did not come to its end, or still runs;
    `stopped_because` is why, None where it was killed.
    """

    format_version: int = FORMAT_VERSION
    started: str
    ended: str | None = None
    stopped_because: str | None = None
    finished: dict[str, int] = {}
    model: str
    model_hash: str
    parameters: int
    prompt_tokens: int
    new_tokens: int
    batches: list[int]
    rounds: int
    calls: int
    seed: int
    cpus: list[int]
    environment: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    contestants: list[Contestant] = []
    rows: list[CallRow] = []

    @property
    def incomplete(self) -> str | None:
        """What a reader has to know of a comparison that did not come to its end; None: it did."""
        if self.ended is not None and self.stopped_because is None:
            return None
        parts = [f"{count} of {self.rounds} rounds of {what}" for what, count in self.finished.items()]
        why = self.stopped_because or "no end is recorded: it still runs, or was killed"
        return f"INCOMPLETE: {why}; {' and '.join(parts) or 'no round'} finished."


_FILE = DocumentFile(
    PEERS_FILE,
    PeersRun,
    FORMAT_VERSION,
    folder="comparison with rivals",
    writer="launchbound peers",
    mend="make the comparison again",
)
write_peers = _FILE.write
"""Write `peers.json` of a folder atomically."""
