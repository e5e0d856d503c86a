"""What `parity` prints of a mode."""

from __future__ import annotations

from service.cli.check import described
from service.records import ModeStatus, Parity


def test_a_mode_that_fails_has_its_whole_name_and_its_reason() -> None:
    parity = Parity(
        passed=False,
        max_abs_logit_difference=3.0,
        tolerance=1e-4,
        positions=10,
        differing_tokens=9,
        near_ties=0,
    )
    failed = ModeStatus(
        mode="reduce-overhead",
        removes="",
        state="failed",
        effective="compiled-cpp",
        parity=parity,
        detail="far off",
    )
    assert described(failed) == (
        "reduce-overhead (as compiled-cpp): NO parity: far off; largest logit difference 3.00e+00, tolerance "
        "1.00e-04; 9 of 10 tokens differ, 0 near ties"
    )
    broken = ModeStatus(
        mode="eager", removes="", state="failed", effective="eager", detail="CppCompileError: no g++"
    )
    assert described(broken) == "eager: NO parity: CppCompileError: no g++"
