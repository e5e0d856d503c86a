"""The table of studies and their bodies over HTTP, the loop of the anatomy process, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from launchbound import app
from models import checkpoint
from models.config import Config
from models.tokenizer import Tokenizer
from models.transformer import Transformer
from service.anatomy import process, studies
from service.anatomy.common import Report, StudyError
from service.anatomy.studies import further_arguments
from service.front.schemas import STUDY_BODIES
from service.measure.cases import Bench
from service.records import Finding, FromAnatomy, Refused, Stop, Study, StudyProgress

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
