"""The engine process: from its settings to its exit code.

Started by the front as `python -m service.engine.process SETTINGS`, with `EngineSettings` as JSON, and ends
with it. It connects before it imports torch, so that the front hears at once what takes long.
"""

from __future__ import annotations

import sys

import msgspec

from service.engine.inbox import Inbox
from service.engine.start_times import START
from service.records import Doing, EngineSettings

IMPORT = Doing(what="importing torch", limit_seconds=300.0)


def main(arguments: list[str]) -> int:
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    inbox = Inbox(settings.address)
    try:
        inbox.announce(IMPORT)
        with START.phase("import"):
            from service.engine.loop import run_engine

        return run_engine(settings, inbox)
    finally:
        inbox.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
