"""What a served model is called where its path is nobody's business."""

from __future__ import annotations

import re
from pathlib import PurePath


def model_name(model: str) -> str:
    """The model of a setting as ids have it: the last part of a folder or hub id, in safe characters.

    The revision of a hub id, which may be a path too, is left out.
    """
    pinned = re.fullmatch(r"hf:((?:[\w.-]+/)?[\w.-]+)@.+", model)
    place = pinned[1] if pinned else model.removeprefix("hf:")
    return re.sub(r"[^\w.-]", "-", PurePath(place).name) or "model"
