"""What the routes are given to work with; `service.app` puts it together."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection

from service.advice import Ledger
from service.border.account import Account
from service.border.anatomy import Anatomy
from service.border.client import EngineClient
from service.border.supervisor import Supervisor
from service.metrics import Metrics
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Parts:
    """The long-lived objects of one front."""

    settings: Settings
    client: EngineClient
    supervisor: Supervisor
    anatomy: Anatomy
    metrics: Metrics
    ledger: Ledger

    def observe(self, account: Account) -> None:
        """One request that ended well, for everything that keeps count."""
        self.metrics.observe(account)
        self.ledger.observe(account)

    @property
    def device(self) -> str:
        """Where the engine runs, or ran when it last spoke."""
        return self.client.device


def parts_of(connection: HTTPConnection) -> Parts:
    """The parts of the app that serves this request."""
    parts: Parts = connection.app.state.parts
    return parts
