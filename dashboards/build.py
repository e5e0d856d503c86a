"""Write the boards to dashboards/grafana/*.json, or with --check fail where a committed one is not current.

`python -m dashboards.build [--check]`; exit code 1 where a board is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.boards import dispatch, load, overview

FOLDER = Path(__file__).parent / "grafana"


def boards() -> dict[str, str]:
    """File name → JSON text of every board, the same on every run."""
    return {f"{made.__name__}.json": _text(made()) for made in (overview, dispatch, load)}


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of files in `folder` that differ from the built boards, are missing, or belong to no board."""
    made = boards()
    found = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    return sorted(name for name in made.keys() | found.keys() if made.get(name) != found.get(name))


def write(folder: Path = FOLDER) -> list[Path]:
    """Write every board, remove boards that no longer exist, return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    made = boards()
    for path in folder.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in made]


def _text(made: Dashboard) -> str:
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(made) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m dashboards.build", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail where a board is not current"
    )
    if parser.parse_args(arguments).check:
        old = stale()
        if old:
            print(f"not current: {', '.join(old)}; run: python -m dashboards.build", file=sys.stderr)
        return 1 if old else 0
    for path in write():
        print(path.relative_to(FOLDER.parent.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
