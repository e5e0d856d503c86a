"""The anatomy process: one study after another on its main thread, where they may ruin nobody's torch.

Started by the front as `python -m service.anatomy.process SETTINGS`, with `EngineSettings` as JSON.
"""

from __future__ import annotations

import signal
import sys
import traceback

import msgspec
import zmq

from service.anatomy import studies
from service.anatomy.errors import StudyError
from service.measure.cases import Bench
from service.protocol.messages import EngineSettings, Problem, Stop
from service.protocol.parent_death import die_with_parent
from service.protocol.placement import pin, threads_now
from service.protocol.studies import Finding, FromAnatomy, Ready, Refused, Study, StudyProgress, ToAnatomy
from service.step.process_state import prepare_process

EXIT_UNKNOWN_STATE = 3


class FrontSocket:
    """The process's end of the border."""

    def __init__(self, address: str) -> None:
        before = threads_now()
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.connect(address)
        self.own_threads = threads_now() - before

    def receive(self) -> Study | Stop:
        """The next message; waits for it."""
        message: Study | Stop = msgspec.msgpack.decode(self._socket.recv(), type=ToAnatomy)
        return message

    def send(self, message: FromAnatomy) -> None:
        """Hand `message` to the border's own thread."""
        self._socket.send(msgspec.msgpack.encode(message))

    def close(self) -> None:
        """Deliver what was sent, then leave."""
        self._socket.close(linger=1000)
        self._context.term()


def work(front: FrontSocket, bench: Bench) -> int:
    """Run what arrives until told to stop; returns the exit code.

    A study that fails in a way it did not mean to has left torch in a state that nobody knows: its reason is
    told, and the process ends.
    """
    while isinstance(asked := front.receive(), Study):
        try:
            front.send(_finding(front, bench, asked))
        except StudyError as error:
            problem = Problem(type=error.type, message=error.message, param=error.param)
            front.send(Refused(id=asked.id, problem=problem))
        except Exception as error:  # noqa: BLE001 - whatever torch raises is the answer to this study
            traceback.print_exc()
            message = f"{asked.name}: {type(error).__name__}: {error}"[:2000]
            front.send(Refused(id=asked.id, problem=Problem(type="study_failed", message=message)))
            return EXIT_UNKNOWN_STATE
    return 0


def _finding(front: FrontSocket, bench: Bench, asked: Study) -> Finding:
    def say(words: str) -> None:
        front.send(StudyProgress(id=asked.id, text=words))

    found = studies.run(bench, asked.name, asked.arguments, say)
    return Finding(id=asked.id, body=msgspec.json.encode(found))


def main(arguments: list[str]) -> int:
    """Serve studies; returns the exit code: 0 stopped as told, 2 bad settings, 3 a failed study."""
    settings = msgspec.json.decode(arguments[0], type=EngineSettings)
    die_with_parent(signal.SIGKILL)  # SIGTERM would not reach it while it is suspended
    prepare_process(settings.cache_folder)
    front = FrontSocket(settings.address)
    try:
        try:
            bench = Bench(settings)
        except ValueError as error:
            print(f"launchbound anatomy: {error}", file=sys.stderr)
            return 2
        # Measured where the engine runs, which rests meanwhile: the front and the load have the other cores.
        pin(bench.cpus, exempt=front.own_threads)
        front.send(Ready())
        return work(front, bench)
    finally:
        front.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
