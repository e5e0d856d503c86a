"""Global state that a process with torch sets once, before its first tensor."""

from __future__ import annotations

import hashlib
import os
import sys

import torch


def prepare_process(cache_folder: str) -> None:
    """Keep compiled code in a private folder per version of torch and Python, and fix global numerics."""
    key = hashlib.sha256(f"{torch.__version__} {sys.version}".encode()).hexdigest()[:12]
    folder = os.path.join(cache_folder, f"compiled-{key}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    torch.set_float32_matmul_precision("highest")
    torch.manual_seed(int.from_bytes(os.urandom(7)))
