"""The long-lived objects that the routes work with; `service.front.app` builds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from service.front.advice import Asked, AutoMode, ServedRequests
from service.front.engine_client import EngineClient
from service.front.errors import BadRequest, LaunchboundError, UnknownMode
from service.front.limits import LargeBodies
from service.front.logs import Ending, RequestLog
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming
from service.front.settings import Settings
from service.front.study_runner import Findings, StudyRunner
from service.front.supervisor import Supervisor
from service.modes import AUTO
from service.records import Job


@dataclass(frozen=True, slots=True)
class AppState:
    """One front: its settings, and the objects that live as long as it does."""

    settings: Settings
    client: EngineClient
    supervisor: Supervisor
    studies: StudyRunner
    metrics: Metrics
    statistics: ServedRequests
    auto: AutoMode
    large_bodies: LargeBodies
    request_log: RequestLog
    findings: Findings = field(default_factory=Findings)
    _unobserved: list[RequestTiming] = field(default_factory=list)

    def check_mode(self, mode: str, param: str = "mode", beside: tuple[str, ...] = ()) -> None:
        """Raise UnknownMode unless this instance serves `mode`, which `param` names, or it is in `beside`."""
        known = (*self.settings.ladder, *beside)
        if mode not in known:
            raise UnknownMode(f"no mode '{mode[:64]}' here; try one of {', '.join(known)}", param=param)

    def bucket_of(self, batch_size: int, param: str = "batch_size") -> int:
        """The batch size that `batch_size` runs in. Raises BadRequest, naming `param`, where none is."""
        buckets, workload = self.settings.batch_sizes, self.settings.workload
        bucket = workload.bucket(buckets, batch_size)
        if bucket is not None:
            return bucket
        if workload.tokens:
            raise BadRequest(f"{param} lies between 1 and {buckets[-1]} here, got {batch_size}", param=param)
        served = ", ".join(map(str, buckets))
        remedy = f"send one of {served}, or start the service with --batch-sizes"
        raise BadRequest(f"{param}: a batch of {batch_size} is not served here: {remedy}", param=param)

    def asked(self, name: str, batch_size: int) -> Asked:
        """The mode that runs a request to `name`, which `check_mode` has let through."""
        if name != AUTO:
            return Asked(name, name)
        return self.auto.pick(batch_size, self.client.open)

    def observe_soon(self, timing: RequestTiming) -> None:
        """Have one request that ended well recorded in metrics, advice and log, by `observe_all`."""
        self._unobserved.append(timing)

    def observe_all(self) -> None:
        """Record the requests that ended: before anyone reads them, while the engine works or rests."""
        while self._unobserved:
            self._observe(self._unobserved.pop(0))

    def observe_next(self) -> None:
        """Record one of the requests that ended, and each other one in a turn of the event loop of its own.

        Streams would wait for many at once.
        """
        if self._unobserved:
            self._observe(self._unobserved.pop(0))
            asyncio.get_running_loop().call_soon(self.observe_next)

    def on_timer(self, lag_seconds: float) -> None:
        """Called several times a second: the event loop was late by `lag_seconds`.

        Where no request runs, those that ended are recorded, as the log is read without a request. What
        requests advise is refreshed too, but not during a sweep, whose requests it would delay.
        """
        self.metrics.loop_lag(lag_seconds)
        if not self.client.in_progress():
            self.observe_all()
            if not self.studies.sweeps.seconds_left():
                self.auto.refresh(self.client.ready_modes())

    def failed(self, job: Job, error: LaunchboundError, ending: Ending, status: int, seconds: float) -> None:
        """Record an accepted request that failed after `seconds`; its client has got `status`."""
        self.metrics.failed(job.mode, ending)
        self.request_log.failed(job, error, ending, status, seconds)

    def rejected(self, request_id: str, mode: str | None, error: LaunchboundError, status: int) -> None:
        if error.rejection is not None:
            self.metrics.rejected(error.rejection, mode)
            self.request_log.rejected(request_id, mode, error, status)

    def _observe(self, timing: RequestTiming) -> None:
        self.metrics.observe(timing)
        self.request_log.ended(timing)
        # One that ran as another form of its mode than declared says nothing of that mode.
        declared = self.client.modes.get(timing.job.mode)
        if declared is None or timing.outcome.effective == declared.effective:
            self.statistics.observe(timing)


def state_of(connection: HTTPConnection) -> AppState:
    state: AppState = connection.app.state.launchbound
    return state
