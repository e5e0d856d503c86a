"""The batch size that plain locust sends at the moment, where it steps through batch sizes."""

from __future__ import annotations

from argparse import Namespace

from locust.env import Environment
from locust.rpc import Message
from locust.runners import WorkerRunner

NAME = "launchbound_batch_step"
"""Of the message to running users, and of the option that a worker gets when locust starts users on it."""


def batch_step(environment: Environment) -> int | None:
    """The batch size of the step; None: there are no steps."""
    return getattr(environment.parsed_options, NAME, None)


def follow_batch_steps(environment: Environment) -> None:
    """Have this process learn of each step: call it in every one, once its runner was created."""

    def changed(msg: Message, **_: object) -> None:
        setattr(environment.parsed_options, NAME, msg.data)

    assert environment.runner is not None
    environment.runner.register_message(NAME, changed)


def set_batch_step(environment: Environment, batch_size: int) -> None:
    """Have all users send this batch size from their next request on, those of workers too.

    To be called where locust's shape runs: in the master, or in the only process.
    """
    assert environment.runner is not None
    assert not isinstance(environment.runner, WorkerRunner)
    environment.parsed_options = environment.parsed_options or Namespace()
    setattr(environment.parsed_options, NAME, batch_size)
    environment.runner.send_message(NAME, batch_size)
