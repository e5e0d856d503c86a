"""Section `tests`: tests/gpu by pytest, a row per test."""

from __future__ import annotations

import os

import pytest

from service.gpu_check.rows import Rows, own_rows

SETTINGS = ("-c", os.devnull, "--rootdir=.", "--noconftest", "-o", "markers=gpu: needs a CUDA device")
"""Without the project's settings and fixtures: they want plugins that a GPU machine may lack."""

OPTIONS = ("-q", *SETTINGS, "-p", "no:cacheprovider")


class RowPerTest:
    """A pytest plugin that writes each test's outcome as soon as it is known."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """How many there are, so that tests which never ran are missed."""
        self._rows.write("collected", count=len(session.items))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A row per test, of its call, or of whatever else failed or skipped it."""
        if report.when == "call" or not report.passed:
            self._rows.write(
                "test",
                name=report.nodeid,
                outcome=report.outcome,
                seconds=report.duration,
                why=None if report.passed else str(report.longrepr)[-2000:],
            )


def main(rows: Rows, folder: str = "tests/gpu") -> int:
    """pytest's exit code."""
    return int(pytest.main([*OPTIONS, folder], plugins=[RowPerTest(rows)]))


if __name__ == "__main__":
    raise SystemExit(main(own_rows()))
