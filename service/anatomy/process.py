"""The anatomy process: runs studies one after another on its main thread, apart from the serving engine.

Started by the front as `python -m service.anatomy.process SETTINGS`, with `EngineSettings` as JSON.
"""

from __future__ import annotations

import sys
import traceback
from collections import deque

import msgspec

from service.anatomy import studies
from service.anatomy.common import StudyError, prepare_bench
from service.frames import connect
from service.measure.cases import Bench
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


def work(front: FrontSocket, bench: Bench) -> int:
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


def _finding(front: FrontSocket, bench: Bench, study: Study) -> Finding:
    def report(text: str, done: int | None = None, total: int | None = None) -> None:
        front.send(StudyProgress(id=study.id, text=text, done=done, total=total))

    found = studies.run(bench, study.name, study.arguments, report)
    return Finding(id=study.id, body=msgspec.json.encode(found))


def main(arguments: list[str]) -> int:
    """Serve studies; returns the exit code: 0 after a Stop, 2 for bad settings, 3 for a failed study."""
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    front = FrontSocket(settings.address)
    try:
        try:
            bench = prepare_bench(settings)
        except StudyError as error:
            print(f"launchbound anatomy: {error}", file=sys.stderr)
            return 2
        front.send(Ready())
        return work(front, bench)
    finally:
        front.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
