"""Steps through batch sizes: `locust -f loadtests/locustfile.py,loadtests/batch_steps.py --step-seconds 30`.

A file of its own, because a shape in the locust file is always active. Each step sends one of --batch-sizes,
in their order, for --step-seconds; the load stops after the last. Locust asks for the step once a second.
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from dataclasses import dataclass
from time import monotonic

from locust import LoadTestShape, events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests.run.plain_locust import follow_batch_steps, set_batch_step

logger = logging.getLogger("launchbound")


@dataclass(frozen=True, slots=True)
class Steps:
    """One step per batch size, `seconds` long, with `users` users."""

    batch_sizes: tuple[int, ...]
    seconds: float
    users: int


def steps_of(options: Namespace) -> Steps:
    """The steps that locust's parsed `options` describe. Raises ValueError, naming option and remedy."""
    if options.step_seconds < 1:
        raise ValueError(f"--step-seconds is {options.step_seconds:g}: give 1 or more")
    if options.step_users < 1:
        raise ValueError(f"--step-users is {options.step_users}: give 1 or more")
    sizes = tuple(int(size) for size in options.batch_sizes.split(","))
    return Steps(sizes, options.step_seconds, options.step_users)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: LocustArgumentParser) -> None:
    """Options of the steps, on the command line and on locust's page."""
    group = parser.add_argument_group("launchbound's steps")
    group.add_argument("--step-seconds", type=float, default=30.0, help="Seconds per batch size")
    group.add_argument("--step-users", type=int, default=1, help="Users, the same in every step")


@events.init.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Environment, **_: object) -> None:
    """Reject invalid options before any user starts, and follow the steps in every process."""
    try:
        steps_of(environment.parsed_options or Namespace())
    except ValueError as error:
        sys.stderr.write(f"locust: {error}\n")
        raise SystemExit(2) from error
    follow_batch_steps(environment)


class BatchSteps(LoadTestShape):
    """Sends one batch size after the other, then stops."""

    def reset_time(self) -> None:
        """Go back before the first step: locust calls this whenever the load starts."""
        super().reset_time()  # type: ignore[no-untyped-call]
        self._begun = 0
        self._step_began = 0.0

    def tick(self) -> tuple[int, float] | None:
        """Users, and how many of them to start per second; None after the last step."""
        assert self.runner is not None
        environment = self.runner.environment
        steps = steps_of(environment.parsed_options or Namespace())
        # By its own clock: while users start on workers locust does not ask, and no step may be left out.
        if not self._begun or monotonic() - self._step_began >= steps.seconds:
            if self._begun == len(steps.batch_sizes):
                return None
            set_batch_step(environment, steps.batch_sizes[self._begun])
            self._begun, self._step_began = self._begun + 1, monotonic()
        return steps.users, float(steps.users)
