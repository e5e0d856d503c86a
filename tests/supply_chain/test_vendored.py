"""Files of other projects in the tree: all are named, and none is another than it is said to be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from supply_chain.vendored import NAME, SHIPPED, VendoredError, vendored

ROOT = Path(__file__).parents[2]
OF_A_BROWSER = {".js", ".mjs", ".css", ".map", ".wasm", ".woff", ".woff2"}
LONGEST_OF_OURS = 1000
"""Characters of a line: what has longer ones was written by a packer."""


def packed(path: Path) -> bool:
    if path.suffix in {".wasm", ".woff", ".woff2", ".map"}:
        return True
    return max(map(len, path.read_text(encoding="utf-8").splitlines()), default=0) > LONGEST_OF_OURS


def test_every_packed_file_that_is_shipped_is_named_with_version_and_licence() -> None:
    named = {each.folder / file for each in vendored(ROOT) for file in each.package.files}
    files = (path for top in SHIPPED for path in (ROOT / top).rglob("*") if path.suffix in OF_A_BROWSER)
    found = {path for path in files if packed(path)}
    assert {path.name for path in found} >= {"swagger-ui-bundle.js", "plotly-basic.min.js"}
    assert sorted(found - named) == [], f"name them in a {NAME} beside them"


def test_every_package_lies_beside_its_licence() -> None:
    for each in vendored(ROOT):
        assert list(each.folder.glob("LICENSE.*")), each.package.name


def described(folder: Path, digest: str, more: str = "") -> None:
    lines = ["[[npm]]", 'name = "thing"', 'version = "1.2.3"', 'license = "MIT"', more]
    (folder / "service").mkdir()
    (folder / "service" / NAME).write_text("\n".join([*lines, "[npm.files]", f'"thing.js" = "{digest}"']))


def test_a_file_is_taken_by_its_digest(tmp_path: Path) -> None:
    described(tmp_path, hashlib.sha256(b"1").hexdigest())
    with pytest.raises(VendoredError, match="missing: fetch it again"):
        list(vendored(tmp_path))
    (tmp_path / "service/thing.js").write_bytes(b"2")
    with pytest.raises(VendoredError, match="is not the file"):
        list(vendored(tmp_path))
    (tmp_path / "service/thing.js").write_bytes(b"1")
    (only,) = vendored(tmp_path)
    assert (only.package.name, only.folder) == ("thing", tmp_path / "service")


def test_an_unknown_key_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    described(tmp_path, "0", more='licence = "MIT"')
    with pytest.raises(VendoredError, match="has name, version, license, files"):
        list(vendored(tmp_path))
