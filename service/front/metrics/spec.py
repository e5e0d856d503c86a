"""One metric as data, and the closed sets of values that its labels can take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from service.front.errors import Rejection
from service.protocol.modes import FALLBACK, MODES
from service.protocol.splits import SIDES

Kind = Literal["counter", "gauge", "histogram", "summary", "info"]
Start = Literal["always", "timings", "dispatch", "cpu", "sampled", "cuda", "merged", "once measured"]

OUTCOMES = ("ok", "error", "cancelled", "timeout", "oom", "rejected")
PHASES = ("prefill", "decode")
TOKEN_KINDS = ("prompt", "generated")
REJECTIONS: tuple[str, ...] = get_args(Rejection)
FALLBACK_REASONS = ("graph_skipped", "other")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. `start` is when its label sets exist at 0, or that it is absent until measured.

    "always": from the start. "timings": from the start, unless instrumentation is turned down. The others as
    "timings", once the engine reports that it runs there, else only once it was measured: "dispatch" wherever
    dispatch is known, "cpu" on a CPU where it is (kernel is the rest there), "sampled" there and never
    elsewhere, "cuda" on CUDA. "merged": from the start of an engine that merges requests.
    `of_requests`: observed per request, and so on CUDA with the mode "fallback" too: only a skipped graph
    makes a request run as another form than its mode declared. `of_compilers`: only of modes that compile on
    some device. A histogram without `buckets` takes the configured batch sizes.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    start: Start = "always"
    buckets: tuple[float, ...] = ()
    of_requests: bool = False
    of_compilers: bool = False

    @property
    def unit(self) -> str:
        """The unit in the name ('' for a pure number)."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if stem.endswith("_" + unit)), "")

    def label_sets(
        self, modes: Sequence[str], batches: Sequence[int], falls_back: bool
    ) -> Iterator[tuple[str, ...]]:
        """Every combination of label values there can be, for closed labels."""
        values: dict[str, Sequence[str]] = {
            "mode": self._modes(modes, falls_back),
            "batch": [str(batch) for batch in batches],
            "outcome": OUTCOMES,
            "phase": PHASES,
            "kind": TOKEN_KINDS,
            "side": SIDES,
            "reason": FALLBACK_REASONS if "mode" in self.labels else REJECTIONS,
        }
        return product(*(values[label] for label in self.labels))

    def _modes(self, modes: Sequence[str], falls_back: bool) -> Sequence[str]:
        if self.of_compilers:
            return [name for name in modes if MODES[name].cpu.compiles or MODES[name].cuda.compiles]
        return (*modes, FALLBACK) if self.of_requests and falls_back else modes
