"""Write the boards to dashboards/grafana/*.json: `python -m dashboards.build`."""

from __future__ import annotations

from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.boards import dispatch, load, overview

FOLDER = Path(__file__).parent / "grafana"


def boards() -> dict[str, str]:
    """File name → JSON text of every board, the same on every run."""
    encoder = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False)
    return {f"{made.__name__}.json": encoder.encode(made()) + "\n" for made in (overview, dispatch, load)}


def write(folder: Path = FOLDER) -> None:
    made = boards()
    for path in folder.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
