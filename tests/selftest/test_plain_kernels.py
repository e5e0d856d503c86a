"""Equal kernels in the plain modes: which steps are compared, and what a floor above its step amounts to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.selftest import plain_kernels
from service.selftest.check import NotMeasurableError
from service.selftest.plain_kernels import PHASES, PLAIN, Place, judge_plain, measure_places, measure_plain
from tests.selftest.made_variants import MadeUpVariants
from tests.selftest.samples import LADDER, rounds

KERNEL_SECONDS = 2e-3


class MadeUpBench:
    """Steps of `kernel` seconds and their mode's floor; `error` is added to eager's prefills."""

    def __init__(self, error: float = 0.0) -> None:
        self._error = error

    def case(self, mode: str, bucket: int, phase: str) -> MadeUpBench.Step:
        added = self._error if (mode, phase) == ("eager", "prefill") else 0.0
        return self.Step(LADDER[mode] + KERNEL_SECONDS * bucket + added * bucket)

    class Step:
        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        def steady_seconds(self, steps: int) -> float:
            return self._seconds


@pytest.fixture
def made_up_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    def floors(bench: object, mode: str, buckets: Sequence[int]) -> dict[Place, float]:
        return {Place(mode, phase, bucket): LADDER[mode] for phase in PHASES for bucket in buckets}

    monkeypatch.setattr(plain_kernels, "phase_floors", floors)


@pytest.mark.usefixtures("made_up_floors")
@pytest.mark.parametrize(("error", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_page_faults_of_eager_s_prefill_fail_the_rows_of_prefill_and_no_other(
    error: float, verdict: str
) -> None:
    found = measure_places(MadeUpBench(error), PLAIN, [1, 16], lambda text: None)  # type: ignore[arg-type]
    verdicts = {row.name: row.verdict for row in judge_plain(found)}
    assert len(verdicts) == 2 * len(PHASES) * 2
    assert {found for name, found in verdicts.items() if "prefill" in name} == {verdict}
    assert {found for name, found in verdicts.items() if "decode" in name} == {"pass"}


def test_a_floor_above_its_step_in_both_modes_is_not_equality() -> None:
    places = [Place(mode, "decode", 1) for mode in PLAIN]
    found = {(place, what): rounds(1e-3) for place in places for what in ("wall", "floor")}
    assert [row.verdict for row in judge_plain(found)] == ["fail", "fail"]


def test_without_eager_there_is_nothing_to_compare_with() -> None:
    variants = MadeUpVariants()
    variants.modes = ["no_grad", "compiled"]
    with pytest.raises(NotMeasurableError, match="compares with eager"):
        measure_plain(variants, lambda text: None)  # type: ignore[arg-type]
