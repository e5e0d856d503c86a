"""Forbids compilation once everything is warm, and recognises the error that an attempt raises."""

from __future__ import annotations

import torch
from torch._dynamo import eval_frame

_RAISED_IN = "torch._dynamo.eval_frame"


def forbid_recompilation() -> None:
    """From now on a call whose guards all fail raises RuntimeError instead of compiling; process-wide."""
    torch.compiler.set_stance("fail_on_recompile")


def recompilation_forbidden() -> bool:
    """Whether `forbid_recompilation` holds. torch can set a stance, and only its own module can read it."""
    return bool(eval_frame._stance.stance == "fail_on_recompile")


def is_recompile_error(error: BaseException) -> bool:
    """Whether `error` is the one that the stance `fail_on_recompile` raises.

    torch has no type for it: it is a plain RuntimeError, and `torch._dynamo.exc.RecompileError` belongs to
    another setting. Other errors may quote its text, so it is recognised by where it was raised: its
    traceback ends in dynamo's own callback.
    """
    traceback = error.__traceback__
    if type(error) is not RuntimeError or traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_globals.get("__name__") == _RAISED_IN
