"""The studies by name: in their process, on the command line, in a terminal, and before the profiler."""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from launchbound import app
from service.anatomy import common, process, rms_norm
from service.anatomy.common import ATTACHED, Report, StudyError
from service.anatomy.layers import study as layers
from service.anatomy.show import ROWS_SHOWN
from service.front.schemas import STUDY_BODIES
from service.measure.cases import Bench
from service.records import Finding, FromAnatomy, Problem, Refused, Stop, Study, StudyProgress
from service.statistics.intervals import Interval
from tests.anatomy.conftest import printed
from tests.support.small_models import quiet

NO_BENCH = cast(Bench, None)


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `experiment`."""

    outcome: str = "found"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Finding of `experiment`."""

    seconds: float


def experiment(bench: Bench, arguments: Arguments, report: Report) -> Found:
    report("looking")
    if arguments.outcome == "refuse":
        raise StudyError("unsupported_here", "not on this device; use another", "outcome")
    if arguments.outcome == "break":
        raise RuntimeError("torch is in pieces")
    return Found(seconds=1.5)


@pytest.fixture
def one_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find", lambda name: process.LoadedStudy(Arguments, experiment))


class FakeFront:
    """Receives one study per outcome, then a Stop; keeps what is sent."""

    def __init__(self, *outcomes: str) -> None:
        studies = [
            Study(id=number, name="x", arguments=msgspec.json.encode({"outcome": outcome}))
            for number, outcome in enumerate(outcomes)
        ]
        self.waiting: deque[Study | Stop] = deque([*studies, Stop()])
        self.sent: list[FromAnatomy] = []

    def receive(self) -> Study | Stop:
        return self.waiting.popleft()

    def send(self, message: FromAnatomy) -> None:
        self.sent.append(message)


def work(*outcomes: str) -> tuple[int, list[FromAnatomy]]:
    front = FakeFront(*outcomes)
    code = process.work(cast(process.FrontSocket, front), NO_BENCH)
    return code, [message for message in front.sent if not isinstance(message, StudyProgress)]


@pytest.mark.usefixtures("one_study")
def test_a_refused_study_leaves_the_process_to_the_next_and_one_that_raises_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, sent = work("found", "refuse", "found")
    problem = Problem(type="unsupported_here", message="not on this device; use another", param="outcome")
    body = b'{"seconds":1.5}'
    assert (code, sent) == (
        0,
        [Finding(id=0, body=body), Refused(id=1, problem=problem), Finding(id=2, body=body)],
    )
    code, sent = work("break", "found")
    assert code == process.EXIT_UNKNOWN_STATE
    assert [message.problem.type for message in sent if isinstance(message, Refused)] == ["study_failed"]
    assert len(sent) == 1
    assert "torch is in pieces" in capsys.readouterr().err


@pytest.mark.usefixtures("one_study")
@pytest.mark.parametrize("arguments", [b'{"depth": 3}', b'{"outcome": 3}', b"[]", b"nonsense"])
def test_arguments_that_do_not_fit_are_refused_with_the_reason(arguments: bytes) -> None:
    with pytest.raises(StudyError, match="x: ") as raised:
        process.run(NO_BENCH, "x", arguments, print)
    assert raised.value.type == "invalid_request"


@pytest.mark.parametrize(
    ("name", "arguments", "param"),
    [
        ("budget", {"modes": ["fast"]}, "modes"),
        ("budget", {"batch_sizes": [3]}, "batch_size"),
        ("memory", {"mode": "eager", "out": "folder"}, "out"),
        ("operator", {"expression": "torch.load(x)"}, "expression"),
        ("operator", {"autocast": True, "dtype": "bfloat16"}, "dtype"),
        ("probes", {"name": "x"}, "name"),
        ("timeline", {"against": "eager"}, "against"),
    ],
)
def test_what_a_study_cannot_do_here_is_refused_by_the_arguments_name(
    bench: Bench, name: str, arguments: dict[str, Any], param: str
) -> None:
    with pytest.raises(StudyError) as refused:
        process.run(bench, name, msgspec.json.encode(arguments), quiet)
    assert refused.value.param == param


def test_an_unknown_study_is_refused_with_the_known_names() -> None:
    with pytest.raises(StudyError, match="operators"):
        process.find("nothing")
    assert STUDY_BODIES.keys() | {"probes"} == process.STUDIES.keys()  # every study is served


def test_the_command_prints_one_json_document_and_its_progress_to_stderr(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "prepare_bench", lambda _: bench)
    app(["anatomy", "--mode=eager", "--batch-size=2", "--json"], standalone_mode=False)
    out, err = capfd.readouterr()
    found: dict[str, Any] = json.loads(out)
    assert (found["mode"], found["batch_size"], found["batch_bucket"]) == ("eager", 2, 2)
    assert "loading the model" in err


@pytest.mark.parametrize(("size", "buckets"), [(5, [1, 4, 16]), (16, [1, 4, 16]), (17, [1, 4, 16, 17])])
def test_a_batch_size_adds_a_bucket_only_above_the_largest(
    size: int, buckets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(common, "prepare_bench", seen.append)
    monkeypatch.setattr(process, "run", lambda *given: seen.append(given) or Found(seconds=1.5))
    further = ["--set", "grad=no_grad", "--set", "sizes=[1, 2]"]
    ended = CliRunner().invoke(app, ["anatomy", f"--batch-size={size}", *further])
    assert ended.exit_code == 0, ended.output
    settings, (_, name, encoded, _) = seen
    arguments = msgspec.json.decode(encoded)
    assert (settings.batch_sizes, name, arguments["batch_size"]) == (buckets, "operators", size)
    assert (arguments["grad"], arguments["sizes"]) == ("no_grad", [1, 2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probe", "nothing"], "is not one of 'graph-break', 'recompile'"),
        (["anatomy", "--layers", "--tape"], "one study at a time"),
        (["anatomy", "--set", "rounds"], "NAME=VALUE"),
        (["anatomy", "--model", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_ends_with_2_and_the_remedy(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "prepare_process", lambda *_: None)
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr
    assert ended.stdout == ""


NEEDED: dict[str, dict[str, Any]] = {"operators": {"mode": "eager"}}


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_bodys_defaults_are_those_of_its_study(name: str) -> None:
    body = STUDY_BODIES[name].model_validate(NEEDED.get(name, {}))
    arguments = body.model_dump(exclude_none=True, exclude={"snapshot"})
    own = process.find(name).arguments
    decoded = msgspec.json.decode(msgspec.json.encode(arguments), type=own)
    assert decoded == own()
    # All but those of a folder.
    assert set(STUDY_BODIES[name].model_fields) - {"snapshot"} == set(own.__struct_fields__) - {"out"}


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_every_number_of_a_body_has_a_bound_above(name: str) -> None:
    """But batch sizes, which the instance's largest bucket bounds."""

    def unbounded(node: Any, key: str) -> list[str]:
        if isinstance(node, list):
            return [found for item in node for found in unbounded(item, key)]
        if not isinstance(node, dict):
            return []
        if node.get("type") in ("integer", "number"):
            return [] if "maximum" in node else [key]
        if node.get("type") == "array" and "maxItems" not in node:
            return [key]
        return [found for own, value in node.items() for found in unbounded(value, f"{key}.{own}")]

    properties = STUDY_BODIES[name].model_json_schema()["properties"]
    for key, schema in properties.items():
        assert key in ("batch_size", "batch_sizes") or unbounded(schema, key) == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("budget", {"modes": ["eager"], "batch_sizes": [1], "rounds": 6}),
        ("layers", {"rounds": 6}),
        ("operators", {"mode": "eager"}),
        ("probes", {"name": "hidden-copy", "repeats": 6}),
        ("rms-norm", {"rounds": 6}),
        ("timeline", {"mode": "eager"}),
    ],
)
def test_every_study_that_times_says_and_prints_what_was_attached_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, object]
) -> None:
    monkeypatch.setattr(common, "profiler_attached", lambda: True)
    monkeypatch.setattr(layers, "load_loops", lambda *_: None)
    monkeypatch.setattr(layers, "time_operations", lambda *_: [])
    monkeypatch.setattr(rms_norm, "_compiled", lambda norm, _: (rms_norm.surrounded(norm), 1))
    found: Any = process.run(bench, name, msgspec.json.encode(arguments), quiet)
    assert ATTACHED in found.notes
    assert ATTACHED in printed(found, width=10_000)


class Part(msgspec.Struct):
    """A row of a finding."""

    name: str
    host_seconds: float
    keys: list[str]
    saved: list[dict[str, Any]]
    absent: None = None


class Shown(msgspec.Struct):
    """A finding with a value of every kind."""

    wall_seconds: Interval
    tape_bytes: int
    copies_share: float
    parts: list[Part]
    source: str
    notes: list[str]
    blame: str = "service/anatomy/probes/compiler.py:61"


REASON = "a reason that is longer than short texts"


def test_a_terminal_shows_every_value_in_its_unit_and_says_what_it_leaves_out() -> None:
    saved = [{"of": "w", "size_bytes": 1_000, "is_view": True, "in_sum": False, "why_not": REASON}]
    rows = [Part(f"row{number}", 5e-6, ["AutogradCPU", "CPU"], saved) for number in range(ROWS_SHOWN + 3)]
    lines = "\n".join(f"line{number}" for number in range(30))
    wall = Interval(12e-6, 11e-6, 14e-6, 9)
    shown = Shown(wall, 2_000, 0.25, rows, lines, ["a [bold] note", "another"])
    text = printed(shown)
    values = "12 µs [11, 14] | 2.0 kB | 25 % | 5 µs | AutogradCPU CPU | kB is view a reason | a [bold] note"
    said = "row59", f"{ROWS_SHOWN} of {len(rows)}; --json has all", "… 18 more; --json has them"
    found = [*values.split(" | "), *said]
    assert [words for words in found if words not in text] == []
    assert [words for words in ("absent", "row60", "line12") if words in text] == []
    narrow = printed(shown, width=40)  # where a cell has more lines, and not a character less
    first, second = (sorted("".join(words.split()).replace("─", "")) for words in (text, narrow))
    assert first == second
    assert "[" not in printed(Shown(Interval(1.0, -math.inf, math.inf, 1), 0, 0, [], "", []))
