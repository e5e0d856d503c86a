"""The rivals as a table: another one is one more row, its requirements file and its worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")


@dataclass(frozen=True, slots=True)
class Rival:
    """A runtime (or a server), run as `worker` in the environment of `requirements`.

    `variant` is handed to the worker, which may hold several rivals.
    """

    name: str
    worker: str
    environment: str
    variant: str = ""

    @property
    def requirements(self) -> Path:
        """The file of pinned versions that its environment is made from."""
        return REQUIREMENTS / f"{self.environment}.txt"


_WORKERS = "loadtests.peers.rivals."

RUNTIMES: tuple[Rival, ...] = (
    Rival("onnxruntime", _WORKERS + "model_onnxruntime", "onnxruntime"),
    Rival("onnxruntime-genai", _WORKERS + "model_onnxruntime_genai", "onnxruntime"),
    Rival("openvino", _WORKERS + "model_openvino", "openvino"),
    Rival("openvino-genai", _WORKERS + "model_openvino_genai", "openvino"),
    Rival("ctranslate2", _WORKERS + "model_ctranslate2", "ctranslate2"),
    Rival("transformers", _WORKERS + "model_transformers", "transformers", "dynamic"),
    Rival("transformers-compiled", _WORKERS + "model_transformers", "transformers", "static"),
)
"""Rivals for the model call."""

SERVERS: tuple[Rival, ...] = (
    Rival("litserve", _WORKERS + "service_litserve", "litserve"),
    Rival("fastapi-inline", _WORKERS + "service_fastapi", "fastapi", "inline"),
    Rival("fastapi-floor", _WORKERS + "service_fastapi", "fastapi", "floor"),
)
"""Rivals for the service around it. The last runs no model: it returns the same JSON, and is the floor."""

OUTSIDE_PYTORCH = frozenset({"onnxruntime", "onnxruntime-genai", "openvino", "openvino-genai", "ctranslate2"})
"""What one would leave PyTorch for."""

REMOVED: dict[str, tuple[str, ...]] = {"openvino": ("torchvision",)}
"""Taken out of an environment again: optimum-intel requires torchvision without using it here, and where pip
has a CPU build of torch alone, torchvision is of another build, and `transformers` cannot be imported."""
