"""The audit of the lock file, by pip-audit itself, against a stand-in for the vulnerability service."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest

from supply_chain import audit, vulnerability_service
from supply_chain.audit import SERVICE_VARIABLE, main
from supply_chain.vulnerability_service import Audited, AuditError, NotReached, ask
from tests.supply_chain.osv import Osv, serving, vulnerability

LOCK = "# Comment.\nharmless==1.0\nBroken_Thing==2.0.1\n"
SECONDS = 60.0
"""More than a busy machine takes."""

NOWHERE = "http://nowhere.example/v1/query"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Audits `lock` with an ignore list of `ignored`; returns the exit code and what was printed where."""
    monkeypatch.setattr(audit, "FIRST_SECONDS", SECONDS)

    def audited(service: str, *options: str, lock: str = LOCK, ignored: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv(SERVICE_VARIABLE, service)
        monkeypatch.setattr(vulnerability_service, "ANSWER_SECONDS", int(SECONDS))
        (tmp_path / "some.lock").write_text(lock)
        (tmp_path / "ignored.toml").write_text(ignored)
        files = [f"--lock={tmp_path / 'some.lock'}", f"--ignored={tmp_path / 'ignored.toml'}"]
        code = main([*files, *options])
        return code, *capsys.readouterr()

    return audited


def entry(until: str) -> str:
    fields = ['id = "CVE-2099-1"', 'package = "broken.thing"', 'reason = "not called"', "noted = 2020-01-01"]
    return "\n".join(["[[ignored]]", *fields, f"until = {until}"])


KNOWN = {
    ("broken-thing", "2.0.1"): [vulnerability("broken-thing", "GHSA-aaaa", ["2.0.2", "3.1"], ["CVE-2099-1"])]
}


@pytest.mark.slow
def test_a_known_vulnerability_fails_with_package_id_and_fixed_versions(run: Run) -> None:
    osv = Osv(KNOWN)
    with serving(osv) as service:
        code, _, errors = run(service)
    assert code == 1
    assert "broken-thing 2.0.1: CVE-2099-1 (GHSA-aaaa), fixed in 2.0.2, 3.1" in errors
    assert "harmless" not in errors
    assert osv.asked == [("harmless", "1.0"), ("harmless", "1.0"), ("broken-thing", "2.0.1")]


@pytest.mark.slow
def test_one_that_is_ignored_today_passes_and_is_told(run: Run) -> None:
    with serving(Osv(KNOWN)) as service:
        code, told, errors = run(service, ignored=entry("2999-12-31"))
    assert (code, errors) == (0, "")
    assert "stays until 2999-12-31: not called" in told
    assert "2 packages, no other known vulnerability" in told


SILENT = {"refuses": 0, "breaks": 500, "is something else": 200, "never answers": 200}


@pytest.mark.slow
@pytest.mark.parametrize("how", SILENT)
def test_a_service_that_gives_no_answer_was_not_reached(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vulnerability_service, "ANSWER_SECONDS", 1)
    held = Event() if how == "never answers" else None
    text = "<html>Log in first</html>" if how == "is something else" else None
    (tmp_path / "one.txt").write_text("harmless==1.0\n")
    with serving(Osv(status=SILENT[how] or 200, text=text, held=held)) as service, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/query"
        with pytest.raises(NotReached):
            ask(tmp_path / "one.txt", nobody if how == "refuses" else service, SECONDS)


def test_without_the_service_one_line_says_so_and_only_what_requires_it_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(requirements: Path, service: str, seconds: float) -> NoReturn:
        raise NotReached("ConnectionError")

    monkeypatch.setattr(audit, "ask", unreachable)
    code, told, errors = run(NOWHERE)
    assert (code, told) == (0, "")
    assert errors == f"some.lock: not audited, {NOWHERE} was not reached (ConnectionError)\n"
    assert run(NOWHERE, "--required")[0] == 1


def test_nobody_waits_longer_than_the_time_for_the_first_package(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "FIRST_SECONDS", 0.0)
    with serving(Osv(held=Event())) as service:
        code, _, errors = run(service)
    assert code == 0
    assert "no report within 0 s" in errors


@pytest.mark.slow
def test_a_package_without_a_version_is_bad_input_and_not_a_service_that_is_down(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("harmless>=1\n")
    with serving(Osv()) as service, pytest.raises(AuditError, match="NAME==VERSION"):
        ask(tmp_path / "one.txt", service, SECONDS)


BAD = {
    "empty": ("# nothing\n", "", "names no package"),
    "ignored without dates": (LOCK, '[[ignored]]\nid = "CVE-1"', "each .*ignored.* has id, package"),
    "ignored is no TOML": (LOCK, "[[", "ignored.toml"),
    "ignored backwards": (LOCK, entry("2019-12-31"), "mend `until`"),
}


@pytest.mark.parametrize(("lock", "ignored", "remedy"), BAD.values(), ids=BAD)
def test_a_file_that_cannot_be_used_is_bad_input(run: Run, lock: str, ignored: str, remedy: str) -> None:
    code, _, errors = run(NOWHERE, lock=lock, ignored=ignored)
    assert code == 2
    assert re.search(remedy, errors)
    assert len(errors.splitlines()) == 1


def test_an_audit_that_left_out_a_package_is_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ask", lambda *_: [Audited("harmless", "1.0")])
    code, _, errors = run(NOWHERE)
    assert code == 2
    assert "1 of 2 lines" in errors
