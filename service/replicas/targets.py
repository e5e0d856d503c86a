"""The replicas as targets of Prometheus: a file of its `file_sd_configs`, replaced in one step."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from service.replicas.registry import ReplicaPlace


def targets_document(replicas: Iterable[ReplicaPlace]) -> bytes:
    """One group per replica. `instance` is its name and where it listens: a trace's address begins so."""
    groups = [
        {
            "targets": [replica.address],
            "labels": {"instance": f"{replica.name}@{replica.address}", "node": replica.node},
        }
        for replica in replicas
    ]
    return msgspec.json.format(msgspec.json.encode(groups), indent=2) + b"\n"


class TargetsFile:
    """The file at `path`, in a folder that is made where it is missing. Raises OSError where it cannot be."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: bytes | None = None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, replicas: Iterable[ReplicaPlace]) -> None:
        """Have it name `replicas`; raises OSError where that fails.

        Prometheus reads either the old file or the new one, never half of it.
        """
        document = targets_document(replicas)
        if document == self._written:
            return
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_bytes(document)
        beside.replace(self.path)
        self._written = document
