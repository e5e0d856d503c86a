"""The verdicts on the parts of requests, given made-up timings."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest

from service.proof.over_http import PARTS_REQUESTS, PARTS_UNCOUNTED, parts_check
from service.proof.rows import Row, run_check


class MadeUpService:
    """In place of a `RunningService`: every request has the same made-up timings."""

    modes = ("eager",)
    cpus = (1,)

    def __init__(self, **changes: float) -> None:
        self._timings = {
            "queue_seconds": 0.0,
            "dispatch_seconds": 2e-3,
            "kernel_seconds": 1e-3,
            "sync_wait_seconds": None,
            "other_seconds": 1e-3,
            "total_seconds": 4e-3,
            "border_seconds": 3e-4,
            "tokenise_seconds": 1e-4,
            **changes,
        }

    def connection(self) -> MadeUpService:
        return self

    def __enter__(self) -> MadeUpService:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to close."""

    def generate(self, mode: str) -> dict[str, float | None]:
        return dict(self._timings)


class MadeUpEngine:
    """In place of a `BareEngine`: its jobs take `seconds` beside steps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def overhead_seconds(self, mode: str) -> float:
        return self._seconds


def verdicts(service: MadeUpService) -> list[str]:
    return [row.verdict for row in rows_of(service)]


def rows_of(service: MadeUpService, engine_seconds: float = 0.6e-3) -> list[Row]:
    check = parts_check(lambda cpus, log: nullcontext(MadeUpEngine(engine_seconds)))
    return run_check("parts", check, service, lambda text: None)


def test_parts_pass_where_they_are_positive_and_their_pieces_agree() -> None:
    assert verdicts(MadeUpService()) == ["pass", "pass"]


def test_a_negative_part_and_a_missing_piece_each_fail_their_own_row() -> None:
    assert verdicts(MadeUpService(queue_seconds=-1e-3)) == ["fail", "pass"]
    assert verdicts(MadeUpService(border_seconds=1e-5)) == ["pass", "fail"]


def test_the_engine_is_measured_in_turn_with_the_requests_on_the_same_cores() -> None:
    begun: list[str] = []

    class Service(MadeUpService):
        def generate(self, mode: str) -> dict[str, float | None]:
            begun.append("request")
            return super().generate(mode)

    class Engine(MadeUpEngine):
        def overhead_seconds(self, mode: str) -> float:
            begun.append("engine")
            return super().overhead_seconds(mode)

    def start(cpus: list[int], log: object) -> AbstractContextManager[Engine]:
        begun.append(f"start on {cpus}")
        return nullcontext(Engine(0.6e-3))

    run_check("parts", parts_check(start), Service(), lambda text: None)
    assert begun == ["start on (1,)", *["request", "engine"] * (PARTS_REQUESTS + PARTS_UNCOUNTED)]


def test_a_machine_that_slows_down_changes_both_sides_alike() -> None:
    slowness = iter([1.0] * (PARTS_UNCOUNTED + PARTS_REQUESTS // 2) + [1.5] * PARTS_REQUESTS)
    now = 1.0

    class Service(MadeUpService):
        def generate(self, mode: str) -> dict[str, float | None]:
            nonlocal now
            now = next(slowness)
            whole = super().generate(mode)
            return {name: value and value * now for name, value in whole.items()}

    class Engine(MadeUpEngine):
        def overhead_seconds(self, mode: str) -> float:
            return now * super().overhead_seconds(mode)

    check = parts_check(lambda cpus, log: nullcontext(Engine(0.6e-3)))
    row = run_check("parts", check, Service(), lambda text: None)[-1]
    assert (row.verdict, row.value) == ("pass", pytest.approx(1.0))


def test_an_engine_that_does_not_start_fails_the_check_instead_of_leaving_a_row_out() -> None:
    def refuse(cpus: list[int], log: object) -> AbstractContextManager[MadeUpEngine]:
        raise RuntimeError("the engine ended (until it is warm)")

    (row,) = run_check("parts", parts_check(refuse), MadeUpService(), lambda text: None)
    assert (row.name, row.verdict) == ("parts", "fail")
    assert "the engine ended" in row.note
