"""A rival's process for tests: answers by the first argument, right, wrong, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from service.parent_death import owned


def main() -> None:
    behaviour = sys.argv[1]
    answers = 0
    for line in sys.stdin:
        asked = json.loads(line)
        if "folder" in asked:
            if behaviour == "cannot load":
                print(json.dumps({"error": "ValueError: an unknown architecture"}), flush=True)
                continue
            settings: dict[str, int] = {"threads": 1}
            if behaviour == "starts another":
                # As a converter: it does not read standard input, nothing but a signal ends it.
                command = owned([sys.executable, "-c", "import time; time.sleep(600)"], signal.SIGKILL)
                settings["started"] = subprocess.Popen(command, stdin=subprocess.DEVNULL).pid
            print(json.dumps({"settings": settings, "versions": {"fake": "1.0"}}), flush=True)
            continue
        answers += 1
        if behaviour == "dies" and answers > 3:
            print("a last word", file=sys.stderr)
            os._exit(3)
        if behaviour in ("silent", "starts another"):
            continue
        if behaviour == "garbage":
            print("not JSON", flush=True)
            continue
        # The reference of the tests continues a prompt by its own last token.
        tokens = [[row[-1]] * asked["new_tokens"] for row in asked["tokens"]]
        if behaviour == "wrong":
            tokens[0][-1] += 1
        seconds = 0.001 * len(tokens)
        print(json.dumps({"tokens": tokens, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
