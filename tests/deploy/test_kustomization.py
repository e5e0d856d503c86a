"""The renderer does what kustomize does with what the overlays use, and refuses everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.kustomization import FILE, KustomizationError, rendered

POD = {"spec": {"containers": [{"name": "one", "image": "app", "env": [{"name": "A"}]}]}}


def overlay(folder: Path, **told: Any) -> Path:
    """An overlay with these keys over a base of one Deployment."""
    (folder / "base").mkdir()
    (folder / "over").mkdir()
    deployment = {"kind": "Deployment", "metadata": {"name": "app"}, "spec": {"template": POD}}
    (folder / "base" / "app.yaml").write_text(yaml.safe_dump(deployment))
    (folder / "base" / FILE).write_text(yaml.safe_dump({"resources": ["app.yaml"]}))
    (folder / "over" / FILE).write_text(yaml.safe_dump({"resources": ["../base"], **told}))
    return folder / "over"


def patch(*operations: dict[str, Any], name: str = "app") -> dict[str, Any]:
    target = {"kind": "Deployment", "name": name}
    return {"patches": [{"target": target, "patch": yaml.safe_dump(list(operations))}]}


def test_operations_are_those_of_rfc_6902(tmp_path: Path) -> None:
    env, container = "/spec/template/spec/containers/0/env", "/spec/template/spec/containers/0"
    told = patch(
        {"op": "add", "path": f"{env}/-", "value": {"name": "C"}},
        {"op": "add", "path": f"{env}/1", "value": {"name": "B"}},
        {"op": "remove", "path": f"{env}/0"},
        {"op": "replace", "path": f"{container}/name", "value": "two"},
        {"op": "add", "path": "/metadata/labels", "value": {}},
        {"op": "add", "path": "/metadata/labels/a.io~1b", "value": "c"},
    )
    (made,) = rendered(overlay(tmp_path, **told))
    (container_made,) = made["spec"]["template"]["spec"]["containers"]
    assert container_made == {"name": "two", "image": "app", "env": [{"name": "B"}, {"name": "C"}]}
    assert made["metadata"]["labels"] == {"a.io/b": "c"}


def test_an_image_gets_its_new_name_and_tag(tmp_path: Path) -> None:
    image = {"name": "app", "newName": "registry.example/app", "newTag": "1.2"}
    (made,) = rendered(overlay(tmp_path, images=[image]))
    assert made["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example/app:1.2"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"nameSuffix": "-x"}, "nameSuffix is not rendered here"),
        ({"resources": ["../nowhere.yaml"]}, "cannot be read"),
        ({"images": [{"name": "other", "newTag": "1"}]}, "no container has the image other"),
        (patch(name="other"), "none of its resources"),
        (patch({"op": "replace", "path": "/spec/nothing", "value": 1}), "does not fit"),
        (patch({"op": "remove", "path": "/spec/template/spec/containers/7"}), "does not fit"),
        (patch({"op": "add", "path": "/spec/nothing/below", "value": 1}), "does not fit"),
        (patch({"op": "move", "path": "/spec", "from": "/kind"}), "use add, replace or remove"),
    ],
)
def test_what_is_not_known_or_not_there_is_refused(tmp_path: Path, told: dict[str, Any], said: str) -> None:
    with pytest.raises(KustomizationError, match=said):
        rendered(overlay(tmp_path, **told))
