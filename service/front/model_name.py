"""What a served model is called where its path is nobody's business."""

from __future__ import annotations

import re
from pathlib import PurePath


def model_name(model: str) -> str:
    """The model of a setting as ids have it: the last part of a folder or hub id, in safe characters."""
    return re.sub(r"[^\w.-]", "-", PurePath(model.removeprefix("hf:")).name) or "model"
