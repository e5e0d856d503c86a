"""An anatomy process without torch: does as a file commands, one study after another.

Started as `python fake_anatomy.py FOLDER SETTINGS`. It notes its process id in `FOLDER/pids` and each study
in `FOLDER/studies`, and follows what stands in `FOLDER/command` when a study comes: `ok`, `refuse TYPE`,
`die`, `garbage`, `hold` (until `FOLDER/go` is there; `FOLDER/holding` says that it has begun),
`exit-at-start CODE`, `write BYTES`. `FOLDER/stopped` exists once a Stop has arrived. Where a study is given a
folder (`out`), a file of that many zero bytes is written there, by default 5.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import msgspec

from service.frames import FrameStream, connect
from service.records import (
    EngineSettings,
    Finding,
    FromAnatomy,
    Problem,
    Ready,
    Refused,
    Study,
    StudyProgress,
    ToAnatomy,
)

TRACE_FILE = "timeline.trace.json.gz"


def main() -> int:
    folder = Path(sys.argv[1])
    settings = msgspec.json.decode(sys.argv[2], type=EngineSettings)
    with (folder / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    name, _, code = command(folder).partition(" ")
    if name == "exit-at-start":
        return int(code)
    stream = connect(settings.address)

    def send(message: FromAnatomy) -> None:
        stream.send(msgspec.msgpack.encode(message))

    send(Ready())
    while isinstance(study := next_message(stream), Study):
        with (folder / "studies").open("a") as studies:
            studies.write(json.dumps([study.name, json.loads(study.arguments)]) + "\n")
        send(StudyProgress(id=study.id, text="measuring nothing", done=0, total=2))
        name, _, argument = command(folder).partition(" ")
        if "out" in (arguments := json.loads(study.arguments)):
            size = int(argument) if name == "write" else 5
            (Path(arguments["out"]) / TRACE_FILE).write_bytes(bytes(size))
        if name == "die":
            os._exit(7)
        if name == "garbage":
            stream.send(b"\xc1 no message")
            continue
        if name == "refuse":
            send(Refused(id=study.id, problem=Problem(type=argument, message="as commanded", param="mode")))
            continue
        if name == "hold":
            hold(folder)
        send(Finding(id=study.id, body=b'{"operators":[],"order":1}'))
    (folder / "stopped").touch()
    stream.close()
    return 0


def next_message(stream: FrameStream) -> ToAnatomy:
    stream.wait(None)
    (frame,) = stream.receive()  # the front sends the next study only once this one has ended
    message: ToAnatomy = msgspec.msgpack.decode(frame, type=ToAnatomy)
    return message


def command(folder: Path) -> str:
    path = folder / "command"
    return path.read_text() if path.exists() else "ok"


def hold(folder: Path) -> None:
    """Count in `holding` until `go` is there."""
    count = 0
    while not (folder / "go").exists():
        count += 1
        (folder / "holding").write_text(str(count))
        time.sleep(0.002)


if __name__ == "__main__":
    raise SystemExit(main())
