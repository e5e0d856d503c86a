"""The anatomy process is started anew where it has died, also before the event loop has heard of that."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from service.front.settings import Settings
from service.front.study_runner import AnatomyProcess
from tests.support.serving import FAKE_ANATOMY


def test_a_start_right_after_a_death_begins_another_process(tmp_path: Path) -> None:
    async def pids() -> list[int | None]:
        command = [sys.executable, str(FAKE_ANATOMY), str(tmp_path)]
        process = AnatomyProcess(Settings().engine_settings, command)
        seen = []
        try:
            for _ in range(3):
                await process.start()
                seen.append(process.pid)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # reaped meanwhile
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            # Nothing was awaited since: the loop still takes it for alive.
            await process.start()
            seen.append(process.pid)
            process.kill()
            await process.start()
            seen.append(process.pid)
        finally:
            await process.end(in_order=True)
        return seen

    first, second, third, last, after_kill = asyncio.run(pids())
    assert first == second == third
    assert None not in (first, last, after_kill)
    assert len({first, last, after_kill}) == 3
