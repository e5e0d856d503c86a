"""The bill of materials: valid, of everything that is installed or vendored, and carried by the image."""

from __future__ import annotations

import copy
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from sysconfig import get_path
from typing import Any

import pytest

from supply_chain import sbom
from supply_chain.sbom import bill, invalid, main
from supply_chain.vendored import VendoredError, vendored

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return bill(Path(sys.executable))


def short(made: dict[str, Any]) -> dict[str, Any]:
    """The bill with its first components and all vendored ones: checking hundreds takes long."""
    of_npm = [each for each in made["components"] if each.get("purl", "").startswith("pkg:npm/")]
    kept = [*made["components"][:8], *of_npm]
    dependencies = [{"ref": each["bom-ref"]} for each in kept]
    return copy.deepcopy({**made, "components": kept, "dependencies": dependencies})


def named(made: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["name"], each["version"]) for each in made["components"]}


def test_it_keeps_the_strict_schema_and_a_licence_that_does_not_exist_breaks_it(made: dict[str, Any]) -> None:
    bill = short(made)
    assert invalid(bill) is None
    bill["components"][-1]["licenses"] = [{"license": {"id": "Of-Nobody"}}]
    assert invalid(bill) is not None


def test_a_bill_that_breaks_the_schema_is_not_written(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for format_, code in (("CycloneDX", 0), ("Another", 2)):
        out = tmp_path / "new" / format_
        monkeypatch.setattr(sbom, "bill", lambda _, told=format_: {**short(made), "bomFormat": told})
        assert main([f"--out={out}"]) == code
        assert out.exists() == (code == 0)


def test_it_names_every_installed_distribution_and_is_about_this_project(made: dict[str, Any]) -> None:
    installed = {(each.metadata["Name"], each.version) for each in distributions(path=[get_path("purelib")])}
    assert len(installed) > 50
    assert {pair for pair in installed if pair[0] != "launchbound"} <= named(made)
    own = made["metadata"]["component"]
    assert (own["name"], own["type"]) == ("launchbound", "application")


def test_it_names_vendored_packages_with_version_licence_and_files(made: dict[str, Any]) -> None:
    by_name = {each["name"]: each for each in made["components"]}
    packages = list(vendored(ROOT))
    assert {each.package.name for each in packages} >= {"swagger-ui-dist", "plotly.js-basic-dist-min"}
    (own,) = (
        each for each in made["dependencies"] if each["ref"] == made["metadata"]["component"]["bom-ref"]
    )
    for each in packages:
        component = by_name[each.package.name]
        assert component["purl"] == f"pkg:npm/{each.package.name}@{each.package.version}"
        (license_,) = component["licenses"]
        said = license_["license"]["id"] if "license" in license_ else license_["expression"]
        assert said == each.package.license
        assert component["purl"] in own["dependsOn"]
        hashes = {Path(file["name"]).name: file["hashes"][0]["content"] for file in component["components"]}
        assert hashes == each.package.files


def test_the_same_environment_makes_the_same_bill(made: dict[str, Any]) -> None:
    assert bill(Path(sys.executable)) == made


def test_what_is_no_python_or_no_vendored_file_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bill.json"
    assert main([f"--python={tmp_path / 'python'}", f"--out={out}"]) == 2
    assert "--python" in capsys.readouterr().err

    def changed(root: Path) -> None:
        raise VendoredError("changed.js is not the file")

    monkeypatch.setattr(sbom, "vendored", changed)
    assert main([f"--out={out}"]) == 2
    assert "changed.js" in capsys.readouterr().err
    assert not out.exists()


def test_the_image_carries_the_bill_and_not_the_tools_that_made_it() -> None:
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    (making,) = (stage for stage in stages if "supply_chain.sbom" in stage)
    assert "AS sbom" in making
    assert "--constraint requirements.lock" in making
    assert "--python /opt/venv/bin/python" in making
    assert re.search(r"COPY --from=sbom /launchbound.cdx.json \S+/launchbound.cdx.json", stages[-1])
    assert all("cyclonedx" not in stage for stage in stages if stage is not making)
