"""The verdicts on the parts of requests, given made-up timings."""

from __future__ import annotations

from service.selftest.check import run_check
from service.selftest.request_parts import parts_check
from service.selftest.results import CheckResult


class MadeUpService:
    """In place of a `RunningService`: every request has the same made-up timings."""

    modes = ("eager",)

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


def verdicts(service: MadeUpService) -> list[str]:
    return [row.verdict for row in rows_of(service, {"eager": 0.6e-3})]


def rows_of(service: MadeUpService, engine_seconds: dict[str, float]) -> list[CheckResult]:
    return run_check("parts", parts_check(engine_seconds), service, lambda text: None)


def test_parts_pass_where_they_are_positive_sum_up_and_their_pieces_agree() -> None:
    assert verdicts(MadeUpService()) == ["pass", "pass", "pass"]


def test_a_negative_part_a_wrong_sum_and_a_missing_piece_each_fail_their_own_row() -> None:
    assert verdicts(MadeUpService(kernel_seconds=-1e-3, total_seconds=2e-3)) == ["fail", "pass", "pass"]
    assert verdicts(MadeUpService(total_seconds=5e-3)) == ["pass", "fail", "pass"]
    assert verdicts(MadeUpService(border_seconds=1e-5)) == ["pass", "pass", "fail"]


def test_without_the_engine_s_seconds_the_check_fails_instead_of_leaving_a_row_out() -> None:
    (row,) = rows_of(MadeUpService(), {})
    assert (row.name, row.verdict) == ("parts", "fail")
    assert "could not be measured" in row.note
