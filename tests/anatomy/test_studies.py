"""The studies by name: in their process, on the command line, in the docs, and before the profiler."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from launchbound import app
from service.anatomy import budget, common, docs, process, rms_norm, studies
from service.anatomy.common import ATTACHED, Report, StudyError
from service.anatomy.docs import BEGIN, CLAIMS, EXAMPLES, Measured, Runs, verdict_of
from service.anatomy.layers import study as layers
from service.anatomy.operators import compiled as lowered
from service.anatomy.studies import further_arguments
from service.front.machine import build_commit
from service.front.schemas import STUDY_BODIES
from service.measure.cases import Bench
from service.measure.step_costs import measure_roof
from service.records import Finding, FromAnatomy, Refused, Stop, Study, StudyProgress
from service.study_names import NOT_ON_CPU, PROBES
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
    monkeypatch.setattr(studies, "find", lambda name: studies.LoadedStudy(Arguments, experiment, print))


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
def test_studies_run_one_after_another_and_a_refused_one_leaves_the_process_to_the_next() -> None:
    code, sent = work("found", "refuse", "found")
    assert code == 0
    first, refused, found = sent
    assert first == Finding(id=0, body=b'{"seconds":1.5}')
    assert isinstance(refused, Refused)
    assert (refused.problem.type, refused.problem.param) == ("unsupported_here", "outcome")
    assert isinstance(found, Finding)


@pytest.mark.usefixtures("one_study")
def test_a_study_that_raises_is_reported_and_ends_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    code, sent = work("break", "found")
    assert code == process.EXIT_UNKNOWN_STATE
    assert [(message.problem.type, message.id) for message in sent if isinstance(message, Refused)] == [
        ("study_failed", 0)
    ]
    assert "torch is in pieces" in capsys.readouterr().err


@pytest.mark.usefixtures("one_study")
@pytest.mark.parametrize("arguments", [b'{"depth": 3}', b'{"outcome": 3}', b"[]", b"nonsense"])
def test_arguments_that_do_not_fit_are_refused_with_the_reason(arguments: bytes) -> None:
    with pytest.raises(StudyError, match="x: ") as raised:
        studies.run(NO_BENCH, "x", arguments, print)
    assert raised.value.type == "invalid_request"


@pytest.mark.parametrize(
    ("name", "arguments", "param"),
    [
        ("budget", {"modes": ["fast"]}, "modes"),
        ("budget", {"mode": "compiled"}, "mode"),
        ("budget", {"batch_sizes": [3]}, "batch_size"),
        ("budget", {"batch_size": 0}, "batch_size"),
        ("memory", {"mode": "eager", "out": "folder"}, "out"),
        ("operator", {"expression": "torch.load(x)"}, "expression"),
        ("operator", {"autocast": True, "dtype": "bfloat16"}, "dtype"),
        ("operators", {"mode": "fast"}, "mode"),
        ("operators", {"mode": "eager", "batch_size": 3}, "batch_size"),
        ("probes", {"name": "x"}, "name"),
        ("probes", {"name": "hidden-copy", "batch_size": 3}, "batch_size"),
        ("timeline", {"against": "eager"}, "against"),
    ],
)
def test_what_a_study_cannot_do_here_is_refused_by_the_arguments_name(
    bench: Bench, name: str, arguments: dict[str, Any], param: str
) -> None:
    with pytest.raises(StudyError) as refused:
        studies.run(bench, name, msgspec.json.encode(arguments), quiet)
    assert refused.value.param == param


def test_an_unknown_study_is_refused_with_the_known_names() -> None:
    with pytest.raises(StudyError, match="operators"):
        studies.find("nothing")
    assert STUDY_BODIES.keys() | {"probes"} == studies.STUDIES.keys()  # every study is served


def test_further_arguments_are_json_or_text() -> None:
    pairs = ["rounds=3", "sizes=[1,2]", "grad=no_grad", "autocast=true", "expression=a=b"]
    assert further_arguments(pairs) == {
        "rounds": 3,
        "sizes": [1, 2],
        "grad": "no_grad",
        "autocast": True,
        "expression": "a=b",
    }
    with pytest.raises(StudyError, match="NAME=VALUE"):
        further_arguments(["rounds"])


def launchbound(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launchbound", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_the_command_prints_one_json_document_and_its_progress_to_stderr(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studies, "prepare_bench", lambda _: bench)
    app(["anatomy", "--mode=eager", "--batch-size=2", "--json"], standalone_mode=False)
    out, err = capfd.readouterr()
    found: dict[str, Any] = json.loads(out)
    assert (found["mode"], found["batch_size"], found["batch_bucket"]) == ("eager", 2, 2)
    assert "loading the model" in err


@pytest.mark.parametrize(("size", "buckets"), [(5, [1, 4, 16]), (16, [1, 4, 16]), (17, [1, 4, 16, 17])])
def test_a_batch_size_adds_a_bucket_only_above_the_largest(
    size: int, buckets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(studies, "main", lambda *given: seen.append(given))
    ended = CliRunner().invoke(app, ["anatomy", f"--batch-size={size}"])
    assert ended.exit_code == 0, ended.output
    ((settings, name, arguments, _),) = seen
    assert (settings.batch_sizes, name, arguments["batch_size"]) == (buckets, "operators", size)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probe", "nothing"], "try one of graph-break"),
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
    own = studies.find(name).arguments
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
    ("values", "verdict"),
    [
        ([(2, 2), (3, 3)], "agrees"),
        ([(2, 2), (30, 31)], "agrees in part"),
        ([(2, 2), (30, 31), (0, 3)], "agrees in part"),
        ([(20, 21), (30, 31)], "disagrees"),
        ([(2, 2), (0, 3)], "undecided"),
        ([(20, 21), (0, 9)], "undecided"),
        ([(6, None)], "disagrees"),
        ([(4, None)], "undecided"),
    ],
)
def test_several_values_agree_in_part_where_some_lie_outside(
    values: list[tuple[float, float | None]], verdict: str
) -> None:
    assert verdict_of([Measured("x", low, low, high) for low, high in values], 1, 5) == verdict


@pytest.mark.parametrize("page", docs.PAGES)
def test_a_page_is_what_was_written_by_hand_and_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    written = tmp_path / "docs" / f"{page}.md"
    written.parent.mkdir()
    written.write_text(f"# by hand\n\n{BEGIN}\n\nolder\n")
    lessons = {claim.about: [Measured("x", 1.5, 1.2, 1.8)] for claim in CLAIMS[:-1]}
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "lesson", lambda _, claim: lessons.get(claim.about, "needs a GPU"))
    monkeypatch.setattr(docs, "printed", lambda run, study, arguments, *_: f"{study}: {arguments}")
    run: Any = SimpleNamespace(rounds=6)
    docs.write_page(page, ["Measured on a day", *docs.PAGES[page](run)])
    text = written.read_text()
    assert text.startswith(f"# by hand\n\n{BEGIN}\n\nMeasured on a day\n\n")
    assert "older" not in text
    if page == "probes":
        assert all(f"probes: {{'name': '{name}'" in text for name in PROBES)
    else:
        assert all(f"{one.study}: {one.arguments}" in text for one in EXAMPLES)
        assert all(f"| {claim.about} | {claim.quoted} | x 1.5 (1.2 to 1.8)" in text for claim in CLAIMS[:-1])
        assert f"| {CLAIMS[-1].about} | costs a wait | – | cannot be measured here: needs a GPU |" in text


@pytest.mark.parametrize("kind", [StudyError, ValueError])
def test_pages_that_cannot_be_written_end_the_program_with_2(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def refuse(*arguments: Any) -> None:
        assert arguments[-1] == build_commit(None)[:8]
        raise StudyError("bad_input", "no line") if kind is StudyError else kind("no line")

    monkeypatch.setattr(docs, "main", refuse)
    ended = CliRunner().invoke(app, ["docs"])
    assert ended.exit_code == 2
    assert "no line" in ended.output


@pytest.mark.compiles
@pytest.mark.slow
def test_every_claim_is_read_from_a_study_or_says_why_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    roof = measure_roof(bench)
    monkeypatch.setattr(budget, "measure_roof", lambda _: roof)
    monkeypatch.setattr(lowered, "decompose", lambda *_: None)
    monkeypatch.setattr(lowered, "graph_texts", lambda *_: [])
    run = Runs(bench, 6, quiet)
    found: dict[str, Any] = {claim.about: docs.lesson(run, claim) for claim in CLAIMS}
    unseen = docs.printed(run, "probes", {"name": "pinned-copy", "repeats": 6})
    unread = [name for name, values in found.items() if isinstance(values, str)]
    assert unread == ["a launch", "`cudaMalloc`", "launches of a step", "a sync in the step"]
    assert found["autograd's keys in `inference_mode`"] == [Measured.counted("", 0.0)]
    assert found["autocast's key (texts disagree)"][0].value >= 1
    assert [value.what for value in found["a whole call"]] == ["matmul", "add", "layer_norm", "in a step"]
    assert unseen.startswith(f"launchbound: {NOT_ON_CPU['pinned-copy']}")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("budget", {"modes": ["eager"], "batch_sizes": [1], "rounds": 6}),
        ("layers", {"rounds": 6}),
        ("operators", {"mode": "eager", "native": False}),
        ("probes", {"name": "view-keeps-storage", "repeats": 6}),
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
    found: Any = studies.run(bench, name, msgspec.json.encode(arguments), quiet)
    assert ATTACHED in found.notes
    assert ATTACHED in printed(studies.find(name).show, found, width=10_000)
