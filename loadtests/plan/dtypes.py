"""The precisions that a plan may name, as `serve --dtype` takes them."""

from __future__ import annotations

from typing import Literal, get_args

Dtype = Literal["float32", "bfloat16", "autocast-bfloat16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)

REFERENCE: Dtype = "float32"
"""What other precisions are compared with."""


def named_dtype(name: str) -> Dtype:
    """The precision called `name`. Raises ValueError where there is none."""
    for dtype in DTYPES:
        if dtype == name:
            return dtype
    raise ValueError(f"no precision '{name}': try one of {', '.join(DTYPES)}")
