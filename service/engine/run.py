"""Runs the engine, on the thread that owns torch, to the exit code with which it ends."""

from __future__ import annotations

import sys
import traceback
from functools import partial

from service.engine.cache_retry import CacheBroken
from service.engine.inbox import Inbox
from service.engine.local_inbox import LocalInbox
from service.engine.loop import Engine
from service.engine.parity_check import Unservable
from service.engine.second_compiler import second_compiler
from service.records import Doing, EngineSettings
from service.step.compile_cache import code_of, discard
from service.step.device_errors import is_device_lost
from service.step.process_state import prepare_process

EXIT_BAD_SETTINGS, EXIT_DEVICE_LOST, EXIT_CACHE_DISCARDED = 2, 4, 5

LOAD_SECONDS = 3600.0
"""How long loading a model may take: gigabytes may come from a hub."""


def run_engine(settings: EngineSettings, inbox: Inbox | LocalInbox) -> int:
    """Serve until a Stop; returns the exit code.

    0 after a Stop, 2 for settings or a model that cannot work, 4 where the device's context is lost, 5 where
    compiled code was at fault and has been removed.
    """
    from_hub = settings.model.startswith("hf:")
    inbox.announce(Doing(what="loading the model", limit_seconds=LOAD_SECONDS, may_wait=from_hub))
    try:
        if settings.discard_compiled:
            discard(code_of(settings.cache_folder, settings.model))
        prepare_process(settings.cache_folder, settings.model)
        engine = Engine(settings, inbox, retries_cache=True)
    except ValueError as error:
        return _refuse(error)
    try:
        engine.parts.warmup.share(partial(second_compiler, engine.parts))
        engine.run()
    except Unservable as error:
        return _refuse(error)
    except CacheBroken as error:
        traceback.print_exception(error)
        return EXIT_CACHE_DISCARDED
    except RuntimeError as error:
        if not is_device_lost(error):
            raise
        traceback.print_exception(error)
        return EXIT_DEVICE_LOST
    return 0


def _refuse(error: ValueError) -> int:
    print(f"launchbound engine: {error}", file=sys.stderr)
    return EXIT_BAD_SETTINGS
