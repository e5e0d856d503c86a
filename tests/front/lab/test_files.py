"""What the lab is made of, by HTTP: its addresses, types and policy, and that nothing else is served."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from setuptools import find_namespace_packages

from dashboards.theme import MODE_COLOURS, PALETTE, PART_COLOURS
from service.front.routes.pages import LAB_FOLDER, VIEWS
from tests.support.serving import Front, refused

ROOT = Path(__file__).parents[3]
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
FILES = {
    path.relative_to(LAB_FOLDER).as_posix(): path
    for path in sorted(LAB_FOLDER.rglob("*"))
    if path.suffix in KINDS
}


def test_the_policy_allows_scripts_and_styles_of_this_service_alone(front: Front) -> None:
    assert front.http.get("/").headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_the_page_has_no_script_or_style_within_it_and_names_no_other_host() -> None:
    page = FILES["index.html"].read_text()
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert "<style" not in page
    assert " style=" not in page
    ours = [name for name in FILES if not name.startswith("vendor/")]
    assert [name for name in ours if re.search(rb"https?://", FILES[name].read_bytes())] == []


@pytest.mark.parametrize("path", FILES)
def test_a_file_is_served_with_its_type(front: Front, path: str) -> None:
    answer = front.http.get(f"/lab/files/{path}")
    assert answer.status_code == 200
    assert answer.content == FILES[path].read_bytes()
    assert answer.headers["content-type"].startswith(KINDS[FILES[path].suffix])


def test_a_browser_that_has_a_file_is_not_sent_it_again(front: Front) -> None:
    first = front.http.get("/lab/files/lab.js")
    tag = first.headers["etag"]
    again = front.http.get("/lab/files/lab.js", headers={"If-None-Match": f'"other", {tag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == tag
    other = front.http.get("/lab/files/lab.js", headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


@pytest.mark.parametrize(
    "path",
    [
        "/lab/", "/lab/files/", "/lab/files/none.js", "/lab/files/../lab.py",
        "/lab/files/%2e%2e/app.py", "/lab/files/views", "/lab/play/more",
    ],
)  # fmt: skip
def test_what_is_not_of_the_lab_is_a_404_in_the_one_shape(front: Front, path: str) -> None:
    refused(front.http.get(path), 404)


def test_a_view_that_is_not_there_is_refused_with_those_that_are(front: Front) -> None:
    message = refused(front.http.get("/lab/none"), 404)["message"]
    assert all(view in message for view in VIEWS)


def test_an_installed_service_has_every_file() -> None:
    """The folders are packages without an __init__, and the types are among the package data."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    endings = project["tool"]["setuptools"]["package-data"]["*"]
    packages = find_namespace_packages(str(LAB_FOLDER.parent), include=["lab*"])
    for name in FILES:
        folder, _, file = f"lab/{name}".rpartition("/")
        assert folder.replace("/", ".") in packages
        assert any(fnmatch(file, ending) for ending in endings), name


def test_modes_and_parts_have_the_colours_of_the_boards() -> None:
    """The front may not import the boards, and a style sheet not at all: so both state them."""
    tokens = dict(re.findall(r"--([\w-]+): (#[0-9A-F]{6})", FILES["lab.css"].read_text()))
    assert {name: tokens[f"mode-{name}"] for name in MODE_COLOURS} == MODE_COLOURS
    assert {name: tokens[f"part-{name.replace(' ', '-')}"] for name in PART_COLOURS} == PART_COLOURS
    assert tuple(tokens[f"palette-{place}"] for place in range(len(PALETTE))) == PALETTE
    known = re.search(r"const OWN = \[(.*?)\]", FILES["parts/colours.js"].read_text(), re.S)
    assert known is not None
    assert re.findall(r'"([\w-]+)"', known[1]) == list(MODE_COLOURS)
