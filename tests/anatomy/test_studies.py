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
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from launchbound import app
from models import checkpoint
from models.config import Config
from models.tokenizer import Tokenizer
from models.transformer import Transformer
from service.anatomy import budget, common, docs, process, rms_norm, studies
from service.anatomy.budget import BudgetArguments, draw_budget
from service.anatomy.common import ATTACHED, Report, StudyError
from service.anatomy.docs import BEGIN, CLAIMS, EXAMPLES, Measured, Runs, about, shown, verdict_of
from service.anatomy.layers import study as layers
from service.anatomy.operators import calls
from service.anatomy.operators import study as operators
from service.anatomy.operators.calls import thread_keys
from service.anatomy.operators.study import OperatorsArguments, list_operators
from service.anatomy.studies import further_arguments
from service.front.machine import build_commit
from service.front.schemas import STUDY_BODIES
from service.measure.cases import Bench, Case
from service.measure.step_costs import measure_roof
from service.modes import MODES
from service.records import EngineSettings, Finding, FromAnatomy, Refused, Stop, Study, StudyProgress
from service.step import profiling
from service.step.roofs import NullKernel
from service.step.trace import ProfiledStep
from service.study_names import NOT_ON_CPU, PROBES
from tests.anatomy.conftest import printed
from tests.support.small_models import quiet, small_bench

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
    monkeypatch.setattr(studies, "find", lambda name: studies.LoadedStudy(Arguments, experiment))


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
def test_studies_run_one_after_another_until_a_stop() -> None:
    code, sent = work("found", "found")
    assert code == 0
    assert sent == [Finding(id=0, body=b'{"seconds":1.5}'), Finding(id=1, body=b'{"seconds":1.5}')]


@pytest.mark.usefixtures("one_study")
def test_a_refused_study_leaves_the_process_to_the_next() -> None:
    code, sent = work("refuse", "found")
    assert code == 0
    refused, found = sent
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


def test_an_unknown_study_is_refused_with_the_known_names() -> None:
    with pytest.raises(StudyError, match="operators"):
        studies.find("nothing")


@pytest.mark.parametrize("name", studies.STUDIES)
def test_each_study_imports_with_its_own_arguments_and_tables(name: str) -> None:
    study = studies.find(name)
    assert issubclass(study.arguments, msgspec.Struct)
    assert study.arguments.__struct_config__.forbid_unknown_fields
    assert callable(study.run)
    assert callable(studies.shown(name))


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer."""
    model = tmp_path_factory.mktemp("model")
    config = Config(layers=1, width=64, heads=2, kv_heads=1, head_width=32, hidden=64, vocabulary=4096)
    checkpoint.save(Transformer(config, 1, seed=3), model)
    Tokenizer.load(checkpoint.TINY_FOLDER, 4096).save(model)
    return model


def launchbound(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launchbound", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
def test_the_command_prints_one_json_document_and_its_progress_to_stderr(
    folder: Path, common_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAUNCHBOUND_CACHE_FOLDER", str(common_cache))
    ended = launchbound("anatomy", "--mode=eager", "--batch-size=2", f"--model={folder}", "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    assert (found["mode"], found["batch_size"], found["batch_bucket"]) == ("eager", 2, 4)
    assert "loading the model" in ended.stderr


@pytest.mark.parametrize(("size", "buckets"), [(5, [1, 4, 16]), (16, [1, 4, 16]), (17, [1, 4, 16, 17])])
def test_a_batch_size_adds_a_bucket_only_above_the_largest(
    size: int, buckets: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(studies, "main", lambda *given: seen.append((given[0].batch_sizes, given[2])))
    ended = CliRunner().invoke(app, ["anatomy", f"--batch-size={size}"])
    assert ended.exit_code == 0, ended.output
    ((batch_sizes, arguments),) = seen
    assert (batch_sizes, arguments["batch_size"]) == (buckets, size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probe", "nothing"], "try one of graph-break"),
        (["anatomy", "--layers", "--tape"], "one study at a time"),
        (["anatomy", "--set", "rounds"], "NAME=VALUE"),
        (["anatomy", "--model", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_ends_with_2_and_the_remedy(arguments: list[str], words: str) -> None:
    ended = launchbound(*arguments)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert ended.stdout == ""


NEEDED: dict[str, dict[str, Any]] = {"operators": {"mode": "eager"}}


def test_every_study_is_served() -> None:
    assert STUDY_BODIES.keys() | {"probes"} == studies.STUDIES.keys()


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_bodys_defaults_are_those_of_its_study(name: str) -> None:
    body = STUDY_BODIES[name].model_validate(NEEDED.get(name, {}))
    arguments = body.arguments(body.given)
    own = studies.find(name).arguments
    decoded = msgspec.json.decode(msgspec.json.encode(arguments), type=own)
    assert decoded == own()


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_body_has_every_argument_of_its_study_but_those_of_a_folder(name: str) -> None:
    own = set(studies.find(name).arguments.__struct_fields__)
    assert set(STUDY_BODIES[name].model_fields) - {"snapshot"} == own - {"out"}


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


ends = st.floats(-1e6, 1e6)


@given(ends, ends, ends, ends)
def test_a_value_agrees_only_where_its_whole_interval_lies_in_the_quoted_range(
    a: float, b: float, c: float, d: float
) -> None:
    (low, high), (quoted_low, quoted_high) = sorted((a, b)), sorted((c, d))
    ends_inside = [quoted_low <= end <= quoted_high for end in (low, high)]
    across = low < quoted_low and high > quoted_high
    expected = "agrees" if all(ends_inside) else "undecided" if any(ends_inside) or across else "disagrees"
    assert verdict_of([Measured("x", low, low, high)], quoted_low, quoted_high) == expected


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


def test_a_value_is_shown_with_its_interval_and_what_was_counted_without() -> None:
    values = [Measured("add", 0.612, 0.6, 0.62), Measured.counted("", 2345), Measured("", 2.0, 1.5, None)]
    assert [shown(value) for value in values] == ["add 0.612 (0.6 to 0.62)", "2,345", "2 (1.5 to more)"]
    low, high = about(3.0)
    assert low < 3.0 < high


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


def test_machine_and_commit_of_a_page_are_named_without_a_folder() -> None:
    with small_bench() as bench:
        text = docs.source(bench, 25, "0123abcd")
    assert "device cpu. 25 rounds; commit 0123abcd." in text
    assert "/" not in text.partition("model ")[2]


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
def test_every_claim_is_read_from_a_study_or_says_why_not() -> None:
    with small_bench() as bench:
        run = Runs(bench, 6, quiet)
        found: dict[str, Any] = {claim.about: docs.lesson(run, claim) for claim in CLAIMS}
        unseen = docs.printed(run, "probes", {"name": "pinned-copy", "repeats": 6})
    unread = [name for name, values in found.items() if isinstance(values, str)]
    assert unread == ["a launch", "`cudaMalloc`", "launches of a step", "a sync in the step"]
    assert found["autograd's keys in `inference_mode`"] == [Measured.counted("", 0.0)]
    assert found["autocast's key (texts disagree)"][0].value >= 1
    assert [value.what for value in found["a whole call"]] == ["matmul", "add", "layer_norm", "in a step"]
    assert unseen.startswith(f"launchbound: {NOT_ON_CPU['pinned-copy']}")


CUDA = torch.device("cuda")
PROFILED = ProfiledStep(operators=1, copies=0, kernels=1, launches=1, kernel_seconds=1e-6)
SETTINGS = EngineSettings(address="", device="cuda", modes=["eager"], batch_sizes=[1], cache_folder="")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of recorded sessions, of which none is real; the process has had none before."""
    found: list[str] = []

    def record(device: torch.device, call: object, steps: int) -> list[dict[str, Any]]:
        found.append(device.type)
        profiling._sessions_of.add("cuda")
        return []

    monkeypatch.setattr(profiling, "record_steps", record)
    monkeypatch.setattr(profiling, "_sessions_of", set())
    return found


@pytest.fixture
def on_cuda(bench: Bench, sessions: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`bench` calls itself one of a CUDA device; what it does in order: `timed`, `attached`, `recorded`."""
    order: list[str] = []
    roof = measure_roof(bench)
    seconds, warm = Case.call_seconds, profiling.warm_profiler

    def timed(case: Case) -> float:
        order.append("timed")
        return seconds(case)

    def attached(device: torch.device) -> None:
        order.append("attached")
        warm(device)

    def alone(device: torch.device) -> NullKernel:
        order.append("timed")
        return NullKernel({"alone": 1e-6})

    def recorded(*given: Any, **named: Any) -> list[calls.StepCalls]:
        order.append("recorded")
        return calls.record(*given, **named)

    monkeypatch.setattr(Case, "call_seconds", timed)
    monkeypatch.setattr(operators, "record", recorded)
    monkeypatch.setattr(profiling, "warm_profiler", attached)
    monkeypatch.setattr(budget, "measure_null_kernel", alone)
    monkeypatch.setattr(budget, "measure_roof", lambda _: roof)
    monkeypatch.setattr(calls, "profile_steps", lambda *_: [PROFILED])
    monkeypatch.setattr(calls, "attach_profiler", lambda _: profiling.attach_profiler(CUDA))
    monkeypatch.setattr(operators, "reported_waits", lambda *_: [])
    monkeypatch.setattr(operators, "kernels_of", lambda *_: None)
    keys = thread_keys(MODES["eager"], bench.device, bench.precision)
    monkeypatch.setattr(operators, "thread_keys", lambda *_: keys)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(bench, "device", CUDA)
    return order


def test_a_bench_of_a_cuda_device_begins_without_the_profiler(
    sessions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SimpleNamespace(device=CUDA, cpus=[])
    monkeypatch.setattr(common, "prepare_process", lambda *_: None)
    monkeypatch.setattr(common, "Bench", lambda _: made)
    monkeypatch.setattr(common, "pin", lambda _: None)
    assert common.prepare_bench(SETTINGS) is cast(Bench, made)
    assert sessions == []


def test_a_budget_profiles_behind_all_that_it_times_its_own_step_and_the_null_kernel_too(
    bench: Bench, on_cuda: list[str]
) -> None:
    arguments = BudgetArguments(modes=["eager"], batch_sizes=[1], mode="no_grad", rounds=6)
    found = draw_budget(bench, arguments, quiet)
    assert on_cuda == ["timed"] * (len(on_cuda) - 1) + ["attached"]
    assert ATTACHED not in found.notes


def test_the_seconds_of_a_listed_step_are_of_before_it_was_profiled(bench: Bench, on_cuda: list[str]) -> None:
    found = list_operators(bench, OperatorsArguments(mode="eager", native=False), quiet)
    assert 0 < found.step_seconds.samples <= on_cuda.index("recorded") < on_cuda.index("attached")
    assert on_cuda.count("attached") == 1
    assert ATTACHED not in found.notes


def test_a_second_study_of_a_process_says_that_the_first_one_profiled(
    bench: Bench, on_cuda: list[str]
) -> None:
    arguments = BudgetArguments(modes=["eager"], batch_sizes=[1], rounds=6)
    assert ATTACHED not in draw_budget(bench, arguments, quiet).notes
    assert ATTACHED in draw_budget(bench, arguments, quiet).notes
    assert on_cuda.count("attached") == 1


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
    assert ATTACHED in printed(studies.shown(name), found, width=10_000)
