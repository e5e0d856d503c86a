"""Probe of views: one row of a layer's output that is kept, as a view or as a clone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from models.served import Served
from service.anatomy.probes.blame import line_of, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report


def view_keeps_storage(probed: ProbedModel, report: Report) -> FaultComparison:
    """The last row of the first layer's output in a prefill, kept after the step."""
    cloning, viewing = probed.copy(), probed.copy()
    probed.layers(cloning)[0].register_forward_hook(_keep_clone)
    probed.layers(viewing)[0].register_forward_hook(_keep_view)
    without, with_fault = probed.served(cloning, "prefill"), probed.served(viewing, "prefill")
    report("reading the storages of what is kept")
    seen = records(probed, with_fault)
    without()
    clone, view = _kept(probed, cloning), _kept(probed, viewing)
    clone_bytes, view_bytes = (tensor.untyped_storage().nbytes() for tensor in (clone, view))
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="bytes_kept_per_step", before=clone_bytes, after=view_bytes),
        blame=line_of("aten::slice.Tensor", seen),
        notes=[
            f"The view shows {view.nbytes:,} bytes of a storage of {view_bytes:,}, "
            f"{view_bytes / view.nbytes:.0f} times as many: all stay in memory as long as the view does.",
            "In time they differ by one small clone. The price of the view is memory, for every step whose "
            "view is kept.",
        ],
    )


def _keep_clone(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute
    layer.kept = _hidden(output)[-1:].clone()


def _keep_view(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute
    layer.kept = _hidden(output)[-1:]


def _hidden(output: Any) -> Tensor:  # noqa: ANN401 - a tensor or a tuple
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def _kept(probed: ProbedModel, model: Served) -> Tensor:
    layer: Any = probed.layers(model)[0]
    kept: Tensor = layer.kept
    return kept
