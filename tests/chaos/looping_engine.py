"""An engine that begins an endless loop within a step, where nothing looks at its messages any more."""

from __future__ import annotations

import sys
from pathlib import Path
from time import monotonic

from tests.chaos.fault import NOTICED_SECONDS, Happened
from tests.chaos.victim import PATIENCE_SECONDS
from tests.support.serving import running

LOOP = """
from service.engine import generation
lay_out = generation.lay_out
def endless(prompts, *others, **named):
    while len(prompts[0]) > 100:
        continue
    return lay_out(prompts, *others, **named)
generation.lay_out = endless
"""
ENGINE = f"""
import sys
from service.engine.process import main
{LOOP}
sys.exit(main(sys.argv[1:]))
"""


def engine_loops(folder: Path) -> Happened:
    """A prompt of over 100 tokens is never prefilled: the engine is replaced, and the request answered."""
    settings = {"modes": ["eager"], "batch_sizes": [1], "device": "cpu", "cache_folder": folder / "cache"}
    with running(settings, [sys.executable, "-c", ENGINE]) as front:
        front.await_ready(PATIENCE_SECONDS)
        pid = front.state.supervisor.pid
        began = monotonic()
        answer = front.http.post(
            "/v1/modes/eager/generate", json={"prompts": ["x = 1\n" * 80]}, timeout=PATIENCE_SECONDS
        )
        noticed = monotonic() - began
        front.await_ready(PATIENCE_SECONDS)
        replaced = front.state.supervisor.pid != pid
        told = "of CPU time within one step" in answer.text
        good = answer.status_code == 503 and told and replaced and noticed <= NOTICED_SECONDS
        return Happened(f"answered with {answer.status_code}, replaced", noticed, good)
