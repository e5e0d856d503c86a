"""A user's module in the engine: calls in, outcomes out, and what is refused before anything is timed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import torch
from safetensors.torch import save as as_file
from torch import Tensor
from torch._dynamo import config as dynamo_config

from models.workload import ModuleError, UserModule, load_module
from service.engine import loop, warmup
from service.engine.forwarding import Forwarder
from service.engine.inbox import LocalInbox, local_job
from service.engine.job import JobResult
from service.engine.loop import Engine
from service.engine.text import JobError
from service.engine.workload import Forward
from service.forward_records import BatchPlace, ForwardWork
from service.front.supervisor import EXIT_BAD_SETTINGS
from service.records import EngineSettings, EngineStatus, Job, Outcome
from service.step import module_parity
from service.step.loaded_model import choose_precision
from service.step.meters import HostMeter, Readings
from service.step.module_inputs import ModuleInputs, WrongInputs
from service.step.module_parity import CallParity
from service.workloads import FORWARD

pytestmark = pytest.mark.usefixtures("restored_globals")

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of modules count from the current folder."""
    monkeypatch.chdir(ROOT)


def named(module: str) -> str:
    return f"tests.support.user_modules.odd:build_{module}"


def settings(folder: Path, module: str, **changes: object) -> EngineSettings:
    base = EngineSettings(
        address="",
        model=named(module),
        modes=["eager", "inference_mode"],
        batch_sizes=[1, 4],
        cache_folder=str(folder),
        threads=1,
    )
    return msgspec.structs.replace(base, **changes)


def called(mode: str = "eager", batch_size: int = 4, **work: Any) -> Job:
    options = {name: work.pop(name) for name in ("sample", "profile") if name in work}
    return local_job(mode, mode, [], 0, forward=ForwardWork(batch_size=batch_size, **work), **options)


def serve(folder: Path, module: str, jobs: list[Job], **changes: object) -> LocalInbox:
    inbox = LocalInbox(jobs)
    Engine(settings(folder, module, **changes), inbox).run()
    return inbox


def outputs_of(outcome: Outcome) -> Any:
    assert outcome.kind == "ok", outcome.problem
    assert outcome.forward_outputs is not None
    return json.loads(outcome.forward_outputs)


FIVE = ["eager", "no_grad", "inference_mode", "compiled", "reduce-overhead"]


@pytest.mark.slow
@pytest.mark.compiles
def test_a_module_serves_in_five_modes_in_parity_with_the_trees_that_it_takes_and_returns(
    tmp_path: Path,
) -> None:
    jobs = [called(mode, 1, seed=7, calls=3, outputs=True) for mode in FIVE]
    inbox = serve(tmp_path, "nested", jobs, modes=FIVE, batch_sizes=[1])
    assert {name: one.state for name, one in inbox.modes.items()} == dict.fromkeys(FIVE, "ready")
    assert all(
        one.parity and one.parity.passed and one.parity.positions == 18 for one in inbox.modes.values()
    )
    assert inbox.modes["compiled"].graph_breaks == inbox.modes["compiled"].recompiles == 0
    user = load_module(named("nested"), CPU, torch.float32)
    with torch.no_grad():
        expected = user.module(**user.inputs(1, 7).kwargs)
    for outcome in inbox.outcomes:
        assert outcome.timings is not None
        assert (outcome.timings.forward.steps, outcome.timings.decode.steps) == (3, 0)
        assert (outcome.batch_size, outcome.batch_bucket) == (1, 1)
        found = outputs_of(outcome)
        power, (best,) = found["pair"]
        assert (power["dtype"], power["shape"]) == ("float32", [1, 8])
        assert torch.tensor(power["data"]).allclose(expected["pair"][0], atol=1e-5)
        assert best == {"dtype": "int64", "shape": [1], "data": expected["pair"][1][0].tolist()}
        assert found["never"]["data"] == [None]  # NaN
        assert found["above"]["data"] == expected["above"].tolist()


def line_of(mark: str) -> int:
    lines = (ROOT / "tests/support/user_modules/odd.py").read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if f"# {mark}" in text)


@pytest.mark.slow
@pytest.mark.compiles
def test_a_mode_that_compiles_nothing_is_not_served_under_its_name_and_says_where(tmp_path: Path) -> None:
    inbox = serve(tmp_path, "recurrent", [], modes=["eager", "compiled"], batch_sizes=[1])
    status = inbox.modes["compiled"]
    assert status.state == "failed"
    place = f"tests/support/user_modules/odd.py:{line_of('recurrent breaks')}"
    said = f"torch.compile compiles nothing of this module, which breaks the graph once: {place}; "
    assert status.detail == f"{said}torch.compile leaves nn.LSTM, nn.GRU and nn.RNN out: {ALLOW_RNN}"


ALLOW_RNN = "set torch._dynamo.config.allow_rnn = True in the file of the factory to have them compiled"


@pytest.mark.slow
@pytest.mark.compiles
def test_a_mode_follows_the_setting_of_torch_that_its_refusal_names(tmp_path: Path) -> None:
    with dynamo_config.patch(allow_rnn=False):  # it is the module's code that changes it
        inbox = serve(tmp_path, "allowed", [], modes=["eager", "compiled"], batch_sizes=[1])
    status = inbox.modes["compiled"]
    assert (status.state, status.graph_breaks, status.reason) == ("ready", 0, None), status.detail
    assert status.parity is not None
    assert status.parity.passed


@pytest.mark.slow
@pytest.mark.compiles
def test_every_mode_names_the_functions_that_are_left_out_as_a_whole(tmp_path: Path) -> None:
    modes = ["compiled", "max-autotune"]
    inbox = serve(tmp_path, "mixed", [], modes=["eager", *modes], batch_sizes=[1])
    places = ", ".join(f"tests/support/user_modules/odd.py:{line_of(f'mixed breaks {n}')}" for n in (1, 2))
    for status in map(inbox.modes.__getitem__, modes):
        assert (status.state, status.graph_breaks) == ("ready", 2), status.detail
        assert status.reason is not None
        assert status.reason.startswith(f"breaks the graph 2 times: {places}; ")
        assert status.reason.endswith(ALLOW_RNN)


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("module", ["branching", "deciding", "wavering"])
def test_a_mode_breaks_the_graph_where_it_must_and_says_where(tmp_path: Path, module: str) -> None:
    modes = ["eager", "compiled", "aot-inductor"]
    jobs = [called("compiled", 1, seed=seed) for seed in range(20, 30)]
    inbox = serve(tmp_path, module, jobs, modes=modes, batch_sizes=[1])
    status = inbox.modes["compiled"]
    line = line_of(f"{module} breaks")
    assert (status.state, status.graph_breaks, status.recompiles) == ("ready", 1, 0)
    assert status.reason == f"breaks the graph once: tests/support/user_modules/odd.py:{line}"
    assert status.parity is not None
    assert status.parity.passed
    # Also on inputs that take another way than those on which it was compiled first.
    assert {(one.kind, one.reason) for one in inbox.outcomes} == {("ok", status.reason)}
    # What must be one graph fails alone, in one line with the place.
    failed = inbox.modes["aot-inductor"]
    assert failed.state == "failed"
    assert failed.detail is not None
    assert f"odd.py:{line})" in failed.detail
    assert "\n" not in failed.detail


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["compiled", "max-autotune", "aot-inductor"])
def test_each_size_is_compiled_for_at_warm_up_and_served_with_its_own_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    jobs = [called(mode, 4, size=size, seed=2, outputs=True) for size in (None, "3", "5")]
    counts: list[Any] = []
    unlike = warmup.unlike

    def seen(effect: Any, callables: int, found: Any, breaks: Any) -> Any:
        counts.append(found)
        return unlike(effect, callables, found, breaks)

    monkeypatch.setattr(warmup, "unlike", seen)
    inbox = serve(tmp_path, "sized", jobs, modes=["eager", mode])
    status = inbox.modes[mode]
    assert (status.state, status.graph_breaks) == ("ready", 0), status.detail
    # Two callables, each once more for the second size; a package is of one size, and none is recompiled.
    assert status.recompiles == (0 if mode == "aot-inductor" else 2)
    if mode == "max-autotune":
        assert counts[-1].frozen == counts[-1].wrappers == 4
    assert status.parity is not None
    assert status.parity.passed
    assert status.parity.positions == 2 * (1 + 4) * 64
    assert {(split.phase, split.batch) for split in status.splits} == {("forward", 1), ("forward", 4)}
    user = load_module(named("sized"), CPU, torch.float32)
    for outcome, size in zip(inbox.outcomes, (None, "3", "5"), strict=True):
        found = torch.tensor(outputs_of(outcome)["data"])
        assert found.allclose(user.module(*user.inputs(4, 2, size).args), atol=1e-5)
        assert outcome.timings is not None
        assert outcome.timings.forward.dispatch_seconds is not None


def test_the_engine_names_its_sizes(tmp_path: Path) -> None:
    described = Forward.open(settings(tmp_path, "sized")).described()
    assert described["input_sizes"] == ["3", "5"]
    sized = "size 3: inputs[0] float32 [1, 3, 8], size 5: inputs[0] float32 [1, 5, 8]"
    assert described["inputs"].startswith(f"batch 1: {sized}; batch 4: size 3")


def test_a_size_that_the_module_has_not_is_refused_with_those_that_it_has() -> None:
    assert refusal(called(size="4"), "sized")[1:] == ("size: send one of 3, 5", "size")
    assert refusal(called(size="4"))[1:] == ("size: there is none: leave it out", "size")


def test_inputs_are_checked_against_those_of_their_size() -> None:
    rows = [[[0.5] * 8] * 5] * 4
    assert forwarded(given([rows], size="5"), "sized").forward.steps == 1
    assert "expected float32 of shape [4, 3, 8]" in refusal(given([rows]), "sized")[1]


@pytest.mark.slow
@pytest.mark.compiles
def test_a_module_that_returns_lists_of_integers_is_compared_exactly(tmp_path: Path) -> None:
    jobs = [called(mode, 4, seed=7, outputs=True) for mode in ("eager", "compiled")]
    inbox = serve(tmp_path, "tagging", jobs, modes=["eager", "compiled"], batch_sizes=[4])
    assert all(one.parity and one.parity.passed and one.parity.positions for one in inbox.modes.values())
    user = load_module(named("tagging"), CPU, torch.float32)
    expected = user.module(*user.inputs(4, 7).args)
    assert [outputs_of(one) for one in inbox.outcomes] == [expected, expected]


REFUSED = {
    "dropping": r"is not deterministic.*\(output differs by .*\(F\.dropout without training=self\.training",
    "counting": r"changes its buffer calls at each call",
    "overwriting": r"changes inputs\[0\], which it is called on: clone it",
    "clipping": r"changes inputs\[0\], which it is called on: clone it",
    "keeping": r"keeps what it has computed of a tensor, and returns it for other values in the same tensor",
    "distribution": r"returns output of type Normal, which cannot be compared: return tensors",
    "silent": r"returns nothing: return what it computes",
    "wrong": r"cannot be called at batch 1 in eager: RuntimeError: mat1 and mat2 .*odd\.py:\d+\)",
}


@pytest.mark.parametrize("module", REFUSED)
def test_what_cannot_be_compared_is_refused_before_anything_is_timed(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "prepare_process", lambda *_: None)
    inbox = LocalInbox([])
    assert loop.run_engine(settings(tmp_path, module), inbox) == EXIT_BAD_SETTINGS
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith(f"launchbound engine: {named(module)} ")
    assert re.search(REFUSED[module], lines[-1]), lines[-1]
    assert {one.state for one in inbox.modes.values()} == {"cold"}


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"linears": "transposed"}, "start without LAUNCHBOUND_LINEARS"),
        ({"batching": "continuous"}, "start without LAUNCHBOUND_BATCHING"),
        ({"context": 64}, "start without LAUNCHBOUND_CONTEXT"),
    ],
)
def test_settings_of_language_models_are_refused(
    tmp_path: Path, change: dict[str, object], remedy: str
) -> None:
    with pytest.raises(ValueError, match=remedy):
        Engine(settings(tmp_path, "described", **change), LocalInbox([]))


@pytest.mark.slow
def test_a_module_has_splits_samples_and_a_profile_of_its_one_phase(tmp_path: Path) -> None:
    statuses: list[EngineStatus] = []

    def watch(message: object) -> None:
        if isinstance(message, EngineStatus) and message.warm:
            statuses.append(message)

    jobs = [called(calls=3), called(calls=400, sample=True), called(calls=5, profile=True)]
    inbox = LocalInbox(jobs, watch)
    Engine(settings(tmp_path, "caching"), inbox).run()
    for status in inbox.modes.values():
        found = {(split.phase, split.batch): split for split in status.splits}
        assert found.keys() == {("forward", 1), ("forward", 4)}
        assert all(split.newest.total > 0 and split.step_seconds > 0 for split in found.values())
    plain, sampled, profiled = inbox.outcomes
    for outcome, calls in zip(inbox.outcomes, (3, 400, 5), strict=True):
        assert outcome.timings is not None
        forward = outcome.timings.forward
        assert forward.steps == calls
        assert forward.wall_seconds is not None
        assert forward.period_seconds is not None
        assert forward.dispatch_seconds is not None
        assert forward.kernel_seconds is not None
        assert forward.dispatch_seconds + forward.kernel_seconds == pytest.approx(forward.wall_seconds)
        assert forward.wall_seconds <= forward.period_seconds
        assert (outcome.timings.dispatch_source, outcome.timings.kernel_source) == ("sampled", "sampled")
    assert (plain.sampled, sampled.sampled) == (False, True)
    assert profiled.profile is not None
    assert [(one.phase, one.steps) for one in profiled.profile] == [("forward", 5)]
    assert profiled.profile[0].operators >= 3
    warm = statuses[0]
    assert (warm.workload, warm.layers, warm.width, warm.context, warm.prefill_chunk) == (
        "forward",
        0,
        0,
        0,
        0,
    )
    inputs = "inputs[0] float32 [1, 8]; batch 4: inputs[0] float32 [4, 8]"
    assert warm.inputs == f"batch 1: {inputs}"
    assert warm.batch_place == BatchPlace(path=[0])
    assert (warm.parameters, warm.linears, warm.step_bytes) == (72, None, None)
    assert warm.memory_bandwidth is not None


class Busy(LocalInbox):
    """Its job is cancelled once `cancelled`."""

    cancelled = False

    def is_cancelled(self, job: Job) -> bool:
        return self.cancelled


def forwarder_of(user: UserModule, inbox: LocalInbox | None = None) -> Forwarder:
    def eager(args: Any, kwargs: Any) -> Any:
        return user.module(*args, **kwargs)

    parity = CallParity.of(eager, user, choose_precision("float32", CPU))
    return Forwarder({4: ModuleInputs(user, 4)}, CPU, inbox or LocalInbox([]), parity)


def forwarded(
    job: Job,
    module: str = "described",
    inbox: LocalInbox | None = None,
    step: Callable[..., Any] | None = None,
) -> JobResult:
    user = load_module(named(module), CPU, torch.float32)
    result = JobResult(workload=FORWARD)
    steps: dict[Any, Any] = {("forward", 4): step or (lambda args, kwargs: user.module(*args, **kwargs))}
    forwarder_of(user, inbox).run(job, steps, result, HostMeter())
    return result


def test_calls_of_a_long_job_are_timed_once_the_caches_are_warm() -> None:
    for calls, untimed in ((1, 0), (7, 0), (9, 1), (400, 10)):
        step = Mock(return_value=None)
        result = forwarded(called(calls=calls), step=step)
        assert (result.forward.steps, step.call_count) == (calls, calls + untimed)


def test_what_a_mode_returns_is_compared_with_eager_on_the_same_inputs() -> None:
    user = load_module(named("plain"), CPU, torch.float32)
    seen: list[Tensor] = []

    def off_by(amount: float) -> Callable[..., Any]:
        def step(args: tuple[Tensor], kwargs: object) -> Tensor:
            seen.append(args[0].clone())
            return user.module(*args) + amount

        return step

    same = forwarded(called(seed=3, compare=True), "plain", step=off_by(0.0))
    assert torch.equal(seen[-1], user.inputs(4, 3, None).args[0])
    assert same.parity is not None
    assert (same.parity.passed, same.parity.max_abs_logit_difference) == (True, 0.0)
    unlike = forwarded(called(seed=3, compare=True), "plain", step=off_by(0.5))
    assert unlike.parity is not None
    assert unlike.parity.max_abs_logit_difference == pytest.approx(0.5)
    assert not unlike.parity.passed
    assert forwarded(called(seed=3), "plain", step=off_by(0.0)).parity is None
    assert unlike.forward.steps == 1


def test_a_job_that_is_cancelled_ends_between_two_calls() -> None:
    inbox = Busy([])
    calls: list[int] = []

    def step(args: object, kwargs: object) -> None:
        calls.append(1)
        inbox.cancelled = len(calls) == 2

    result = forwarded(called(calls=7), inbox=inbox, step=step)
    assert (result.kind, result.forward.steps, len(calls)) == ("cancelled", 2, 2)
    assert result.ended_ns > result.forward.begin[-1]


def test_a_job_whose_deadline_passes_ends_between_two_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = 3_600_000_000_000
    calls: list[int] = []

    def step(args: object, kwargs: object) -> None:
        calls.append(1)

    def clock() -> int:
        return perf_counter_ns() + (2 * hour if calls else 0)

    monkeypatch.setattr("service.engine.forwarding.perf_counter_ns", clock)
    job = msgspec.structs.replace(called(calls=7), deadline_ns=perf_counter_ns() + hour)
    result = forwarded(job, step=step)
    assert (result.kind, result.forward.steps, len(calls)) == ("timeout", 1, 1)


def refusal(job: Job, module: str = "described") -> tuple[str, str, str | None]:
    with pytest.raises(JobError) as refused:
        forwarded(job, module)
    problem = refused.value.problem
    return problem.type, problem.message, problem.param


def test_a_batch_size_that_is_not_served_is_refused_with_those_that_are() -> None:
    type_, message, param = refusal(called(batch_size=3))
    assert (type_, param) == ("invalid_request", "batch_size")
    assert "a batch of 3 is not served: send one of 4" in message


def test_prompts_are_no_inputs() -> None:
    assert refusal(local_job("a", "eager", ["x"], 4))[0] == "invalid_request"


def given(values: object, **work: Any) -> Job:
    return called(inputs=json.dumps(values).encode(), **work)


def test_inputs_as_json_are_what_the_module_is_called_on_until_others_come() -> None:
    seen: list[Tensor] = []

    def step(args: tuple[Tensor], kwargs: object) -> None:
        seen.append(args[0].clone())

    user = load_module(named("described"), CPU, torch.float32)
    forwarder = forwarder_of(user)
    rows = [[float(row)] * 8 for row in range(4)]
    whole = [[row] * 8 for row in range(4)]
    for job in (called(), given([rows]), called(), called(seed=2), given([whole])):
        forwarder.run(job, {("forward", 4): step}, JobResult(workload=FORWARD), HostMeter())
    first, json_rows, again, other, integers = seen
    assert torch.equal(first, user.inputs(4, 0).args[0])
    assert torch.equal(json_rows, torch.tensor(rows))
    assert torch.equal(again, first)
    assert torch.equal(other, user.inputs(4, 2).args[0])
    assert torch.equal(integers, json_rows)


def test_an_argument_that_is_given_twice_stays_one_tensor() -> None:
    seen: list[Any] = []
    forwarded(called(seed=3), "same", step=lambda args, _: seen.append(args))
    assert seen[0][0] is seen[0][1]
    user = load_module(named("same"), CPU, torch.float32)
    assert torch.equal(seen[0][0], user.inputs(4, 3).args[0])
    forwarded(given([X, X]), "same", step=lambda args, _: seen.append(args))
    assert torch.equal(seen[1][0], torch.tensor(X))
    _, message, param = refusal(given([X, [[0.0] * 8] * 4]), "same")
    assert (message, param) == (
        "inputs: two of them are one tensor of the module: send them alike",
        "inputs",
    )


X = [[0.5] * 8] * 4
IDS = [[1, 2, 3]] * 4
EXPECTED = "int64 of shape [4, 3]"


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"x": X, "ids": [[1, 2]] * 4, "power": 2}, "inputs.ids", f"expected {EXPECTED}, got integer of"),
        ({"x": X, "ids": [[1.5, 2, 3]] * 4, "power": 2}, "inputs.ids", f"expected {EXPECTED}, got float of"),
        ({"x": X, "ids": [[True] * 3] * 4, "power": 2}, "inputs.ids", f"expected {EXPECTED}, got bool of"),
        ({"x": X, "ids": [[1, 2], [3]] * 2, "power": 2}, "inputs.ids", f"nested lists of {EXPECTED}"),
        ({"x": X, "ids": [[2**63] * 3] * 4, "power": 2}, "inputs.ids", f"nested lists of {EXPECTED}"),
        ({"x": X, "ids": IDS, "power": 3}, "inputs.power", "expected 2, which is no tensor"),
        ({"x": X, "ids": IDS}, "inputs.power", "called with x, ids, power"),
        ({"x": X, "ids": IDS, "power": 2, "more": 1}, "inputs.more", "called with x, ids, power"),
        ({"x": "text", "ids": IDS, "power": 2}, "inputs.x", "nested lists of float32 of shape [4, 8]"),
        ({"x": None, "ids": IDS, "power": 2}, "inputs.x", "nested lists of float32 of shape [4, 8]"),
        ([X, IDS], "inputs", "expected an object"),
        (5, "inputs", "expected an object"),
    ],
    ids=str,
)
def test_inputs_that_the_module_is_not_called_on_are_refused_by_name(
    values: object, field: str, said: str
) -> None:
    type_, message, param = refusal(given(values), "nested")
    assert (type_, param) == ("invalid_request", field)
    assert message.startswith(f"{field}: ")
    assert said in message


def filed(**tensors: Tensor) -> Job:
    return called(safetensors=as_file(tensors))


def test_safetensors_are_what_the_module_is_called_on_and_what_is_no_tensor_stays() -> None:
    seen: list[Any] = []
    x, ids = torch.rand(4, 8), torch.arange(12).reshape(4, 3)

    def step(args: object, kwargs: dict[str, Any]) -> None:
        seen.append({name: one.clone() if isinstance(one, Tensor) else one for name, one in kwargs.items()})

    forwarded(filed(ids=ids, x=x), "nested", step=step)
    assert list(seen[0]) == ["x", "ids", "power"]
    assert torch.equal(seen[0]["x"], x)
    assert torch.equal(seen[0]["ids"], ids)
    assert seen[0]["power"] == 2
    by_place: list[Tensor] = []
    forwarded(filed(**{"0": x}), step=lambda args, _: by_place.append(args[0].clone()))
    assert torch.equal(by_place[0], x)


FLOATS, INTEGERS = torch.ones(4, 8), torch.ones(4, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("tensors", "field", "said"),
    [
        ({"x": FLOATS.double(), "ids": INTEGERS}, "safetensors.x", "float32 [4, 8], got float64 [4, 8]"),
        ({"x": FLOATS, "ids": INTEGERS[:3]}, "safetensors.ids", "expected int64 [4, 3], got int64 [3, 3]"),
        ({"x": FLOATS}, "safetensors.ids", "the module is called with x, ids"),
        (
            {"x": FLOATS, "ids": INTEGERS, "power": INTEGERS[:1].clone()},
            "safetensors.power",
            "called with x, ids",
        ),
    ],
)
def test_safetensors_that_the_module_is_not_called_on_are_refused_by_name(
    tensors: dict[str, Tensor], field: str, said: str
) -> None:
    type_, message, param = refusal(filed(**tensors), "nested")
    assert (type_, param) == ("invalid_request", field)
    assert message.startswith(f"{field}: ")
    assert said in message


def test_a_file_of_another_format_is_refused() -> None:
    _, message, param = refusal(called(safetensors=b"PK"), "nested")
    assert (message[:45], param) == ("safetensors: this is no file of that format (", "safetensors")


def test_a_tree_of_tensors_is_refused_as_safetensors_and_its_batch_is_found() -> None:
    user = load_module(named("crosswise"), CPU, torch.float32)
    inputs = ModuleInputs(user, 4).first
    assert inputs.batch_place == BatchPlace(path=[1, "both", 0], dimension=1)
    with pytest.raises(WrongInputs, match="safetensors: argument 1 is a tree of tensors: send inputs"):
        inputs.of_safetensors(as_file({"1": FLOATS}))


def test_a_list_is_refused_of_another_length() -> None:
    assert refusal(given([X, X]))[1] == "inputs: expected a list of 1"
    assert refusal(given({"x": X}))[1] == "inputs: expected a list of 1"


def test_inputs_of_other_shapes_for_another_seed_are_refused_by_what_they_are() -> None:
    user = load_module(named("growing"), CPU, torch.float32)
    said = r"inputs\(4, 1\) .* float32 \[4, 2, 8\], and with seed 0 .* float32 \[4, 1, 8\]: give the same"
    with pytest.raises(ModuleError, match=said):
        ModuleInputs(user, 4)


class SpyMeter(HostMeter):
    """Writes down in which order it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def run(self, step: Any, arguments: Any, readings: Readings) -> Any:
        self.order.append("run")
        return super().run(step, arguments, readings)

    def copy(self, tokens: Tensor) -> Tensor:
        assert tokens.tolist() == [0]
        self.order.append(f"copy {self.order.count('run')}")
        return torch.tensor([self.order.count("run")])

    def fetch(self, copied: Any, readings: Readings) -> list[int]:
        self.order.append(f"fetch {int(copied)}")
        return []


def test_on_cuda_a_call_is_launched_before_the_one_before_it_is_waited_for_and_all_are_in_the_end() -> None:
    user = load_module(named("described"), CPU, torch.float32)
    forwarder = forwarder_of(user)
    forwarder._waits = True
    meter, result = SpyMeter(), JobResult(workload=FORWARD)
    forwarder.run(called(calls=3, seed=5), {("forward", 4): lambda *_: None}, result, meter)
    launches = ["run", "copy 1", "run", "copy 2", "fetch 1", "run", "copy 3", "fetch 2", "fetch 3"]
    assert meter.order == launches
    fed, *rest = result.forward.feed
    assert fed > 0
    assert rest == [0, 0]


def test_outputs_beyond_the_limit_are_refused_and_not_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.forwarding.MOST_OUTPUT_NUMBERS", 35)
    assert forwarded(called()).forward_outputs is None
    type_, message, param = refusal(called(outputs=True))
    assert (type_, param) == ("invalid_request", "outputs")
    assert message.startswith("outputs of 36 numbers are over the limit of 35")


@pytest.mark.slow
def test_a_mode_that_computes_something_else_is_not_served_and_the_tensor_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = module_parity._called
    built: list[object] = []

    def wrong(step: Any, inputs: Any) -> Any:
        built.append(step)
        found = run(step, inputs)
        if len(built) <= 6:  # eager twice at two sizes, then as a mode
            return found
        return [(name, leaf + 1 if name == "output.best" else leaf) for name, leaf in found]

    monkeypatch.setattr(module_parity, "_called", wrong)
    inbox = serve(tmp_path, "described", [called("inference_mode")])
    assert inbox.modes["eager"].state == "ready"
    status = inbox.modes["inference_mode"]
    assert status.state == "failed"
    assert status.detail == "out of parity with eager at batch 1: 1 of 1 values of output.best differ"
    assert inbox.outcomes[0].kind == "error"


@pytest.mark.slow
def test_a_module_without_parameters_serves(tmp_path: Path) -> None:
    inbox = serve(tmp_path, "plain", [called("inference_mode", outputs=True)])
    assert outputs_of(inbox.outcomes[0])["shape"] == [4, 8]
