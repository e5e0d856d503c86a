"""The method's version is the one that the changelog names."""

from __future__ import annotations

import re
from pathlib import Path

from service.records import METHOD

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def test_the_changelogs_newest_method_section_names_the_version() -> None:
    newest = CHANGELOG.read_text().partition("\n### Method\n")[2].partition("\n## ")[0]
    found = re.search(r"raised where values are no longer comparable: (\d+)\.", newest)
    assert found is not None
    assert int(found.group(1)) == METHOD
