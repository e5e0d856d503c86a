"""Has the costs of steps measured, once all modes are warm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from service.engine.batching.step_costs import StepCosts
from service.engine.configured_mode import ConfiguredMode
from service.engine.prefill import Place
from service.step.device_errors import free_memory, is_device_lost
from service.step.meters import Meter


class CostRounds:
    """Measures `costs` of the modes that `ready` gives, in their `places`."""

    def __init__(
        self,
        costs: StepCosts,
        ready: Callable[[], Mapping[str, ConfiguredMode]],
        places: Mapping[int, Place],
        meter: Meter,
    ) -> None:
        self._costs = costs
        self._ready = ready
        self._places = places
        self._meter = meter

    def measure(self) -> Iterator[None]:
        """Measure all modes for the first time; yields so that they serve meanwhile."""
        for name, configured in self._ready().items():
            with told(f"what steps of {name} cost is not known"):
                yield from self._costs.measure(name, dict(configured.steps), self._places, self._meter)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Log an error that no request has a part in. Raises what loses the device's context."""
    try:
        yield
    except Exception as error:
        if is_device_lost(error):
            raise
        print(f"launchbound engine: {what}: {error}", file=sys.stderr)
        free_memory(error)
