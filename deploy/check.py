"""Check what Kubernetes would be given, without a cluster: `python -m deploy.check`.

Renders each overlay and validates every resource against the published schemas of the oldest and the newest
Kubernetes named here, unknown fields included. A ServiceMonitor is the Prometheus operator's: it has a schema
of the fields that are used, beside it. Exit code 0: nothing found; 1: what was found is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
from jsonschema import Draft202012Validator

from deploy.kustomization import FOLDER, OVERLAYS, KustomizationError, Resource, rendered

VERSIONS = ("1.30", "1.37")
"""Oldest and newest Kubernetes whose schemas the resources are held to."""

OPERATORS = {"ServiceMonitor": FOLDER / "servicemonitor.schema.json"}
"""Kinds that Kubernetes itself does not know, and their schemas."""


def problems(resource: Resource) -> Iterator[str]:
    """What is wrong with one resource, a line each."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    if resource["kind"] in OPERATORS:
        schema = json.loads(OPERATORS[resource["kind"]].read_text(encoding="utf-8"))
        for error in Draft202012Validator(schema).iter_errors(resource):
            yield f"{name}: {error.json_path}: {error.message}"
        return
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(resource, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{name}, Kubernetes {version}: {error.json_path}: {error.message}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{name}: {error.message}"


def found(overlay: Path) -> Iterator[str]:
    """What is wrong with one overlay, a line each."""
    try:
        resources = rendered(overlay)
    except KustomizationError as error:
        yield str(error)
        return
    for resource in resources:
        for problem in problems(resource):
            yield f"{overlay.name}: {problem}"


def main() -> int:
    """Command line; returns the exit code."""
    lines = [line for overlay in OVERLAYS for line in found(overlay)]
    for line in lines:
        print(line, file=sys.stderr)
    return 1 if lines or not OVERLAYS else 0


if __name__ == "__main__":
    sys.exit(main())
