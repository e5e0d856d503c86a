"""What the documentation points to is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from service.front.settings import Settings
from service.proof.runner import ALL_CHECKS

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HISTORY = [ROOT / "CHANGELOG.md", ROOT / "LOG.md", *(ROOT / "docs" / "log").glob("*.md")]

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
ONLY = re.compile(r"selftest --only ([a-z,-]+)")
SOURCE = re.compile(r"`((?:service|loadtests|models|tests|dashboards)/[\w/.]+\.(?:py|cpp|js|toml))`")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ +(.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for path, anchor in LINK.findall(FENCE.sub("", page.read_text())):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_list_of_decisions_has_each_page_once() -> None:
    listed = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DECISIONS.glob("*.md") if page.name != "README.md")


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HISTORY], ids=named)
def test_every_check_and_file_of_the_program_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    assert {name for found in ONLY.findall(text) for name in found.split(",")} <= set(ALL_CHECKS)
    assert not [path for path in SOURCE.findall(text) if not (ROOT / path).exists()]


FROM_AN_INDEX = re.compile(r"install(?: -[\w-]+)* ['\"]?launchbound\b|launchbound\[\w")


def test_nothing_tells_to_install_this_package_from_an_index_where_another_may_have_its_name() -> None:
    texts = ("*.py", "*.md", "*.yml", "*.yaml", "*.toml", "*.html", "*.js", "Makefile", ":!*/swagger/*")
    command = ["git", "grep", "--untracked", "--files-with-matches", "launchbound", "--", *texts]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files.remove("pyproject.toml")  # the extra `dev` is made of the others
    assert [name for name in files if FROM_AN_INDEX.search((ROOT / name).read_text())] == []
    for written in ("pip install -q {}", "pip install '{}[ray]'"):
        assert FROM_AN_INDEX.search(written.format("launchbound"))


def test_every_setting_is_described() -> None:
    page = (ROOT / "docs" / "settings.md").read_text()
    flags = {"host", "port"}
    assert not [
        name for name in Settings.model_fields if name not in flags and f"`{name.upper()}`" not in page
    ]


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    groups = yaml.safe_load((ROOT / "dashboards" / "rules.yml").read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    for alert in alerts:
        path, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert anchor == alert["alert"].lower()
        assert anchor in anchors(ROOT / path)
    assert alerts
