"""The engine process: one life of the loop, from its settings to its exit code.

Started by the front as `python -m service.engine.process SETTINGS`, with `EngineSettings` as JSON, and ends
with it (`service.protocol.parent_death`).
"""

from __future__ import annotations

import sys
import traceback

import msgspec

from service.engine.inbox import Inbox
from service.engine.loop import Engine
from service.protocol.messages import EngineSettings
from service.step.device_errors import is_device_lost
from service.step.process_state import prepare_process


def main(arguments: list[str]) -> int:
    """Run one engine life; returns the exit code.

    0 after a Stop, 2 for settings that cannot work, 4 where the device's context is lost.
    """
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    prepare_process(settings.cache_folder)
    inbox = Inbox(settings.address)
    try:
        try:
            engine = Engine(settings, inbox)
        except ValueError as error:
            print(f"launchbound engine: {error}", file=sys.stderr)
            return 2
        try:
            engine.run()
        except RuntimeError as error:
            if not is_device_lost(error):
                raise
            traceback.print_exception(error)
            return 4
    finally:
        inbox.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
