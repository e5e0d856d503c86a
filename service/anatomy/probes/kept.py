"""Probe of results that are kept until a step ends, as a tape or a collector of activations keeps them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from service.anatomy.probes.blame import line_that_calls
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report
from service.anatomy.tape.storages import distinct_bytes, tensors_in


class _Results(TorchFunctionMode):
    """Sees the result of every function of torch, and keeps it where `keeps`."""

    def __init__(self, keeps: bool) -> None:
        super().__init__()
        self.keeps = keeps
        self.kept: list[object] = []
        self.append = self.kept.append

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        result = function(*args, **(kwargs or {}))
        if self.keeps:
            self.append(result)
        return result


def results_kept(probed: ProbedModel, report: Report) -> FaultComparison:
    """Every result of a prefill, dropped when nothing uses it any more or kept until the step ends."""
    dropping, keeping = _Results(keeps=False), _Results(keeps=True)
    without, with_fault = (probed.served(_under(probed, one), "prefill") for one in (dropping, keeping))
    report("reading the storages of what is kept")
    results, kept = _kept(probed, keeping)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="bytes_kept_per_step", before=_kept(probed, dropping)[1], after=kept),
        blame=line_that_calls(keeping.append, with_fault),
        notes=[
            f"{results} results in {kept:,} bytes of their own are alive when the step ends. Where they are "
            "dropped, an operator may write into an earlier result's memory, which the caches may still "
            "hold.",
            "A tape keeps results too, so the same kernels, instruction for instruction, can take longer in "
            "eager than under no_grad.",
            "Both steps run under a mode that sees every result, in Python; its time is in both.",
        ],
    )


def _under(probed: ProbedModel, results: _Results) -> Callable[..., tuple[Tensor, Tensor]]:
    def step(*arguments: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401 - as the model's
        with results:
            found: tuple[Tensor, Tensor] = probed.model(*arguments)
        results.kept.clear()
        return found

    return step


def _kept(probed: ProbedModel, results: _Results) -> tuple[int, int]:
    """Number and bytes of the results in memory of their own, at the end of a step."""
    arguments = probed.arguments("prefill")

    def step(*arguments: Any) -> list[Tensor]:  # noqa: ANN401 - as the model's
        with results:
            probed.model(*arguments)
        return list(tensors_in(results.kept))

    owned = [*probed.model.parameters(), *probed.model.buffers(), *tensors_in(list(arguments))]
    addresses = {tensor.untyped_storage().data_ptr() for tensor in owned}
    own = [
        tensor
        for tensor in probed.served(step, "prefill")()
        if tensor.untyped_storage().data_ptr() not in addresses
    ]
    results.kept.clear()
    return len(own), distinct_bytes(own)
