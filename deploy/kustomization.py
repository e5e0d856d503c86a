"""An overlay rendered as `kustomize build` renders it, as far as the files here go.

Known of a kustomization are `resources`, `images` and `patches` (operations of RFC 6902: add, replace,
remove); anything else is refused, so that nothing is left out in silence.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

FOLDER = Path(__file__).parent / "kubernetes"
FILE = "kustomization.yaml"
OVERLAYS = tuple(sorted(path.parent for path in FOLDER.glob(f"overlays/*/{FILE}")))
KNOWN = frozenset({"apiVersion", "kind", "resources", "images", "patches"})


class KustomizationError(ValueError):
    """A kustomization that cannot be rendered here, or refers to what is not there."""


def rendered(folder: Path) -> list[Resource]:
    """The resources of the kustomization in `folder`, its bases first. Raises KustomizationError."""
    path = folder / FILE
    told = _read(path)
    if unknown := told.keys() - KNOWN:
        raise KustomizationError(f"{path}: {', '.join(sorted(unknown))} is not rendered here: use {KNOWN}")
    resources: list[Resource] = []
    for name in told.get("resources", []):
        found = folder / name
        resources += rendered(found) if found.is_dir() else [_read(found)]
    for patch in told.get("patches", []):
        _patch(resources, patch, path)
    for image in told.get("images", []):
        _rename(resources, image, path)
    return resources


def _read(path: Path) -> Resource:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise KustomizationError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise KustomizationError(f"{path} holds no mapping: one resource per file")
    return content


def _patch(resources: list[Resource], patch: dict[str, Any], path: Path) -> None:
    target = patch["target"]
    aims = [one for one in resources if _is(one, target)]
    if not aims:
        raise KustomizationError(f"{path}: a patch is for {target}, which is none of its resources")
    for resource in aims:
        for operation in yaml.safe_load(patch["patch"]):
            try:
                _apply(resource, operation)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise KustomizationError(f"{path}: {operation} does not fit {target}: {error!r}") from error


def _is(resource: Resource, target: dict[str, str]) -> bool:
    return (resource["kind"], resource["metadata"]["name"]) == (target["kind"], target["name"])


def _apply(resource: Resource, operation: dict[str, Any]) -> None:
    """One operation; raises what a path into nothing raises."""
    *way, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    place: Any = resource
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key: Any = last if isinstance(place, dict) else len(place) if last == "-" else int(last)
    action = operation["op"]
    if action not in ("add", "replace", "remove"):
        raise ValueError(f"operation {action}: use add, replace or remove")
    if action != "add":
        del place[key]
    if action == "remove":
        return
    if isinstance(place, list):
        place.insert(key, deepcopy(operation["value"]))
    else:
        place[key] = deepcopy(operation["value"])


def _rename(resources: list[Resource], image: dict[str, str], path: Path) -> None:
    """Give the containers of that image its new name and tag."""
    containers = [
        container
        for resource in resources
        for container in resource.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
        if container["image"] == image["name"]
    ]
    if not containers:
        raise KustomizationError(f"{path}: no container has the image {image['name']}")
    for container in containers:
        container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
