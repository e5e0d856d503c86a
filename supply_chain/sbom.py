"""Write the bill of materials (CycloneDX 1.6, JSON) of a Python environment: `python -m supply_chain.sbom`.

It names every installed distribution, and the npm packages whose files lie in the tree. Exit code 2 where it
cannot be made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from supply_chain.vendored import Vendored, VendoredError, vendored

ROOT = Path(__file__).parents[1]
FILE = ROOT / "build" / "launchbound.cdx.json"
VERSION = SchemaVersion.V1_6

Json = dict[str, Any]


class SbomError(Exception):
    """The bill cannot be made; the text names the remedy."""


def bill(python: Path, root: Path = ROOT) -> Json:
    """The bill of the environment of the interpreter `python`, with the vendored packages of the tree `root`.

    The same on every run for the same environment: without a serial number and a time. Raises SbomError,
    and VendoredError where a vendored file is not what its folder says.
    """
    made = _of_environment(python, root / "pyproject.toml")
    components = [_component(each, root) for each in vendored(root)]
    made["components"] += components
    (own,) = (
        each for each in made["dependencies"] if each["ref"] == made["metadata"]["component"]["bom-ref"]
    )
    own["dependsOn"] = sorted([*own.get("dependsOn", []), *(each["bom-ref"] for each in components)])
    made["dependencies"] += [{"ref": each["bom-ref"]} for each in components]
    return made


def invalid(made: Json) -> str | None:
    """Why `made` breaks CycloneDX's strict schema; None where it does not."""
    error = JsonStrictValidator(VERSION).validate_str(json.dumps(made))
    return None if error is None else str(error)


def _of_environment(python: Path, pyproject: Path) -> Json:
    options = [f"--spec-version={VERSION.to_version()}", "--output-format=JSON", "--output-reproducible"]
    options += ["--mc-type=application", f"--pyproject={pyproject}", "--no-validate"]
    command = [sys.executable, "-m", "cyclonedx_py", "environment", *options, str(python)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SbomError(
            f"cannot read the environment of {python}: {done.stderr.strip()}; name one with --python"
        )
    made: Json = json.loads(done.stdout)
    return made


def _component(each: Vendored, root: Path) -> Json:
    """The npm package, with the files of it that lie in the tree."""
    package = each.package
    scope, _, name = package.name.rpartition("/")
    address = PackageURL(type="npm", namespace=scope or None, name=name, version=package.version).to_string()
    license_ = (
        {"expression": package.license}
        if " " in package.license
        else {"license": {"id": package.license, "acknowledgement": "declared"}}
    )
    files = [
        {
            "type": "file",
            "bom-ref": f"{address}#{file}",
            "name": (each.folder / file).relative_to(root).as_posix(),
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for file, digest in sorted(package.files.items())
    ]
    described = {"type": "library", "bom-ref": address, "name": package.name, "version": package.version}
    return {**described, "licenses": [license_], "purl": address, "components": files}


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m supply_chain.sbom", description=__doc__)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of which environment")
    parser.add_argument("--out", type=Path, default=FILE, help="the file to write")
    chosen = parser.parse_args(arguments)
    try:
        made = bill(chosen.python)
    except (SbomError, VendoredError) as error:
        print(error, file=sys.stderr)
        return 2
    if (why := invalid(made)) is not None:
        print(f"the bill breaks CycloneDX's schema, and is not written: {why}", file=sys.stderr)
        return 2
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    print(f"{chosen.out}: {len(made['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main())
