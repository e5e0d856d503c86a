"""The studies by name, and the process that runs them one after another, apart from the serving engine.

The front starts it as `python -m service.anatomy.process SETTINGS`, with `EngineSettings` as JSON.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from typing import Any, NamedTuple

import msgspec

from service.anatomy.common import Report, StudyError, prepare_bench
from service.frames import connect
from service.measure.cases import AnyBench
from service.records import (
    EngineSettings,
    Finding,
    FromAnatomy,
    Problem,
    Ready,
    Refused,
    Stop,
    Study,
    StudyProgress,
    ToAnatomy,
)
from service.study_names import not_of_modules


class LoadedStudy(NamedTuple):
    arguments: type[msgspec.Struct]
    run: Callable[[Any, Any, Report], msgspec.Struct]


STUDIES: dict[str, tuple[str, str, str]] = {
    "operators": ("operators.study", "OperatorsArguments", "list_operators"),
    "layers": ("layers.study", "LayersArguments", "measure_layers"),
    "budget": ("budget", "BudgetArguments", "draw_budget"),
    "tape": ("tape", "TapeArguments", "read_tape"),
    "timeline": ("timeline", "TimelineArguments", "draw_timeline"),
    "memory": ("memory", "MemoryArguments", "read_memory"),
    "operator": ("operator_call", "OperatorCallArguments", "follow_call"),
    "rms-norm": ("rms_norm", "RmsNormArguments", "compare_rms_norm"),
    "probes": ("probes.study", "ProbesArguments", "run_probe"),
}
"""Every study by its module and the names of its arguments' type and of its function: a row for a new one."""


def find(name: str) -> LoadedStudy:
    """The study `name`. Raises StudyError, which lists the known names, for any other."""
    if name not in STUDIES:
        raise StudyError("not_found", f"no study '{name[:64]}'; try one of {', '.join(STUDIES)}", "study")
    module, arguments, function = STUDIES[name]
    # Imported when it is first run: some import a compiler.
    found = import_module(f"service.anatomy.{module}")
    return LoadedStudy(getattr(found, arguments), getattr(found, function))


def run(bench: AnyBench, name: str, arguments: bytes, report: Report) -> msgspec.Struct:
    """Run the study `name` with `arguments` as JSON. Raises StudyError for arguments that cannot work, and
    for a study of language models where a module is served.
    """
    study = find(name)
    if not bench.kind.tokens and (why := not_of_modules(name)):
        raise StudyError("wrong_workload", why, "study")
    try:
        decoded = msgspec.json.decode(arguments, type=study.arguments)
    except msgspec.DecodeError as error:
        raise StudyError("invalid_request", f"{name}: {error}") from None
    return study.run(bench, decoded, report)


EXIT_UNKNOWN_STATE = 3


class FrontSocket:
    def __init__(self, address: str) -> None:
        self._stream = connect(address)
        self._frames: deque[bytes] = deque()

    def receive(self) -> Study | Stop:
        """Block until the next message. Raises EOFError where the front has gone."""
        while not self._frames:
            self._stream.wait(None)
            self._frames.extend(self._stream.receive())
        message: Study | Stop = msgspec.msgpack.decode(self._frames.popleft(), type=ToAnatomy)
        return message

    def send(self, message: FromAnatomy) -> None:
        """Send `message` without blocking; what the front does not take at once leaves with the next call."""
        self._stream.send(msgspec.msgpack.encode(message))

    def close(self) -> None:
        """Wait up to a second for the front to take what was sent, then close."""
        self._stream.close(linger_seconds=1.0)


def work(front: FrontSocket, bench: AnyBench) -> int:
    """Run each study that arrives until a Stop; returns the exit code.

    An exception other than StudyError leaves torch in an unknown state: it is sent as `study_failed`, and the
    process ends with EXIT_UNKNOWN_STATE.
    """
    while isinstance(study := front.receive(), Study):
        try:
            front.send(_finding(front, bench, study))
        except StudyError as error:
            problem = Problem(type=error.type, message=error.message, param=error.param)
            front.send(Refused(id=study.id, problem=problem))
        except Exception as error:  # noqa: BLE001 - sent to the client as this study's error
            traceback.print_exc()
            message = f"{study.name}: {type(error).__name__}: {error}"[:2000]
            front.send(Refused(id=study.id, problem=Problem(type="study_failed", message=message)))
            return EXIT_UNKNOWN_STATE
    return 0


def _finding(front: FrontSocket, bench: AnyBench, study: Study) -> Finding:
    def report(text: str, done: int | None = None, total: int | None = None) -> None:
        front.send(StudyProgress(id=study.id, text=text, done=done, total=total))

    found = run(bench, study.name, study.arguments, report)
    return Finding(id=study.id, body=msgspec.json.encode(found))


def main(arguments: list[str]) -> int:
    """Serve studies; returns the exit code: 0 after a Stop, 2 for bad settings, 3 for a failed study."""
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    with closing(FrontSocket(settings.address)) as front:
        try:
            bench = prepare_bench(settings)
        except StudyError as error:
            print(f"launchbound anatomy: {error}", file=sys.stderr)
            return 2
        front.send(Ready())
        return work(front, bench)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
