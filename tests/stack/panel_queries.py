"""Every query of the boards, and values for Grafana's variables, to run them without Grafana."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dashboards.build import boards

NEEDS_A_GPU = frozenset(
    {
        "Dispatch against device span",
        "Device span p95",
        "Sync wait",
        "Decode step p95",
        "Decode step on the device",
        "Profiled kernels",
        "Dispatch after the profiler",
        "Graph replays",
        "Graphs captured",
        "Allocator",
        "Allocator peak",
        "Allocator retries",
        "Failed allocations",
    }
)
"""Panels whose series only exist on CUDA."""

PARTS_THAT_NEED_A_GPU = frozenset({"sync wait", "kernels", "launches"})
"""Queries, by legend, of panels that otherwise have data on a CPU as well."""

NEEDS_NVIDIAS_EXPORTER = frozenset({"GPU utilisation"})
"""Panels of series that NVIDIA's exporter provides."""


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """One query of one panel; `legend` is its template, or the column it fills."""

    board: str
    panel: str
    letter: str
    legend: str
    expr: str

    @property
    def needs_a_gpu(self) -> bool:
        """Whether it has data only for an instance on CUDA."""
        return self.panel in NEEDS_A_GPU or self.legend in PARTS_THAT_NEED_A_GPU

    @property
    def needs_more(self) -> bool:
        """Whether it has no data for a service on a CPU."""
        return self.needs_a_gpu or self.panel in NEEDS_NVIDIAS_EXPORTER

    def __str__(self) -> str:
        return f"{self.board}: {self.panel} {self.letter}"


def panel_queries() -> list[PanelQuery]:
    """All queries, in the order of the boards."""
    return [
        PanelQuery(
            name.removesuffix(".json"),
            panel["title"],
            target["refId"],
            target["legendFormat"],
            target["expr"],
        )
        for name, text in boards().items()
        for panel in json.loads(text)["panels"]
        for target in panel.get("targets", [])
    ]


def filled(
    expr: str, window: str, job: str = ".*", instance: str = ".*", mode: str = ".*", slo: str = "0.1"
) -> str:
    """`expr` with values for its variables; `window` stands for both of Grafana's intervals."""
    values = {
        "__rate_interval": window,
        "__range": window,
        "instance": instance,
        "job": job,
        "mode": mode,
        "slo": slo,
    }
    for name, value in values.items():
        # As Grafana does: backslashes are doubled inside a PromQL string.
        expr = expr.replace(f"${name}", value.replace("\\", "\\\\"))
    return expr
