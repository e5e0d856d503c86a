"""`launchbound generate` against a service with the fake engine: what is shown, and how it ends."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from launchbound import app
from service.cli.generate import printable, timing_table
from tests.support.serving import Front


def generate(front: Front, *arguments: str) -> Result:
    """`launchbound generate` with a few new tokens, because the fake engine's context is small."""
    return CliRunner().invoke(app, ["generate", "--max-new-tokens=4", f"--url={front.url}", *arguments])


def test_the_text_comes_after_its_prompt_and_then_mode_and_rate(front: Front) -> None:
    shown = generate(front, "say ", "--mode=reduce-overhead", "--max-new-tokens=3")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.startswith("say w0 w1 w2\n")
    assert "tiny in reduce-overhead (here: compiled-cpp) on cpu" in shown.stdout
    assert "3 tokens" in shown.stdout


def test_as_json_the_answer_stands_alone(front: Front) -> None:
    shown = generate(front, "say ", "--json", "--max-new-tokens=3")
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["outputs"][0]["text"] == "w0 w1 w2"
    assert "3 tokens" in shown.stderr
    assert generate(front, "say ", "--max-new-tokens=3").stdout.startswith("say w0")


@pytest.mark.parametrize("command", ["!oom", "!problem internal", "!die-after-tokens"])
def test_a_generation_that_fails_ends_with_exit_code_1(own_front: Front, command: str) -> None:
    shown = generate(own_front, command)
    assert shown.exit_code == 1
    assert shown.stderr.splitlines()[-1].startswith("launchbound: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--mode=fastest"], "does not serve fastest"),
        (["x", "--max-new-tokens=64"], "context of 64"),
        (["x", "--model=small"], "belong to the service"),
        ([""], "prompts"),
        (["!problem prompt_too_long"], "as commanded"),
    ],
)
def test_bad_input_ends_with_exit_code_2(front: Front, arguments: list[str], message: str) -> None:
    shown = generate(front, *arguments)
    assert shown.exit_code == 2, shown.output
    assert message in shown.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://host", "localhost"])
def test_an_address_where_nothing_answers_is_bad_input(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("loadtests.run.target.CONNECT_GRACE_SECONDS", -1.0)
    assert CliRunner().invoke(app, ["generate", "x", f"--url={url}"]).exit_code == 2


def test_control_characters_of_a_terminal_are_replaced() -> None:
    assert printable("a\x1b[31mb\r\x07\x9b\tc\n") == "a\ufffd[31mb\ufffd\ufffd\ufffd\tc\n"


def test_every_part_has_its_share_of_the_total(front: Front) -> None:
    timings = front.generate().json()["timings"]
    parts = {"queue_seconds": 0.1, "dispatch_seconds": 0.2, "kernel_seconds": 0.3, "other_seconds": 0.4}
    lines = shown_times({**timings, **parts, "total_seconds": 1.0}).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["queue", "10%"], ["dispatch", "20%"], ["kernel", "30%"], ["other", "40%"]
    ]  # fmt: skip


def shown_times(timings: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(timing_table(timings, sampled=False))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_on_a_cpu_dispatch_is_labelled_as_sampled_with_its_interval(front: Front) -> None:
    shown = generate(front, "x").stdout
    assert all(part in shown for part in ("queue", "dispatch", "kernel", "other"))
    assert "sampled, 0.0800 ms to 0.112 ms" in shown
    assert "sync wait" not in shown


def test_on_cuda_dispatch_is_measured_and_the_host_waits(cuda_front: Front) -> None:
    shown = generate(cuda_front, "x").stdout
    assert "sync wait" in shown
    assert "measured" in shown
    assert "sampled, " not in shown


def test_kernel_time_that_is_known_on_cuda_is_said_to_run_beside_the_host(cuda_front: Front) -> None:
    timings = cuda_front.generate().json()["timings"]
    known = {**timings, "kernel_seconds": 0.002, "sources": {"dispatch": "measured", "kernel": "sampled"}}
    assert "kernels ran for 2.00 ms beside the host (sampled)" in shown_times(known)
