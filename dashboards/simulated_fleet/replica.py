"""One replica's metrics: the service's own recorder, moved by made-up requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from prometheus_client.openmetrics.parser import text_string_to_metric_families

from dashboards.simulated_fleet import accounts
from service.front.metrics.recorder import Metrics
from service.front.metrics.series import new_registry
from service.protocol.modes import default_modes

BATCH_SIZES = (1, 4, 16)
"""The service's own default, which a test compares."""

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


class Replica:
    """A replica that has served every mode at every batch size once, and once under the profiler.

    So each series that its device can have is there. `device` is "cpu" or "cuda".
    """

    def __init__(
        self, device: str, modes: Sequence[str] = (), batch_sizes: Sequence[int] = BATCH_SIZES, seed: int = 0
    ) -> None:
        self._device = device
        self._random = Random(seed)
        self._modes, self._batch_sizes = [*modes] or default_modes(), [*batch_sizes]
        build = {"version": "0", "commit": "0"}
        self._metrics = Metrics(new_registry(), self._modes, self._batch_sizes, build)
        self._metrics.connections(1, 512)
        self._metrics.engine(accounts.engine(device, self._modes, self._batch_sizes))
        for mode in self._modes:
            self._metrics.mode(accounts.ready(mode, device, self._batch_sizes))
            for batch in self._batch_sizes:
                self._observe(mode, batch)
                self._observe(mode, batch, profiled=True)
        self._pages: dict[str, tuple[bytes, str]] = {}

    def serve(self) -> None:
        """One more request, of a random mode and batch size."""
        self._observe(self._random.choice(self._modes), self._random.choice(self._batch_sizes))
        self._pages.clear()

    def page(self, accept: str) -> tuple[bytes, str]:
        """The exposition that a scrape with this Accept header gets, and its content type."""
        if accept not in self._pages:
            self._pages[accept] = self._metrics.render(accept, Counter(), waiting=0)
        return self._pages[accept]

    def series(self) -> Counter[str]:
        """Series per family, as a scrape finds them."""
        page, _ = self.page(OPEN_METRICS)
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(page.decode()):
            found[family.name] += len(family.samples)
        return found

    def _observe(self, mode: str, batch: int, profiled: bool = False) -> None:
        self._metrics.observe(accounts.request(mode, self._device, batch, self._random, profiled))
