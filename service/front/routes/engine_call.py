"""The engine calls of one HTTP request: they end with it, each is counted once, and may be streamed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.front.engine_client import PendingRequest
from service.front.errors import (
    BadRequest,
    CannotSample,
    ClientGone,
    DeadlinePassed,
    LaunchboundError,
    OutOfMemory,
    from_problem,
)
from service.front.logs import Ending
from service.front.request_timing import RequestTiming, add_up
from service.front.routes.answers import EventAnswer, reply, server_timing
from service.front.routes.state import AppState
from service.front.study_runner import SweepTracker
from service.records import Job, OutcomeKind, Problem, Token
from service.workloads import Workload, of_job

SWEEP_HEADER = b"x-launchbound-run"
LAB_HEADER = b"x-launchbound-client"

Result = TypeVar("Result")


class EngineCall:
    """Runs the jobs of a request one after another, and cancels the running one where the client disconnects.

    A request with `X-Launchbound-Run` is one of a sweep, from its first accepted job on. One with
    `X-Launchbound-Client` is of the lab, and refused during a sweep. `answered_status`: of a begun stream.
    """

    def __init__(self, state: AppState, scope: Scope, receive: Receive) -> None:
        self._state = state
        self._receive = receive
        names = [name for name, _ in scope["headers"]]
        self._of_sweep = SWEEP_HEADER in names
        self._of_lab = LAB_HEADER in names
        self._sweeps: SweepTracker | None = None
        self._pending: PendingRequest | None = None
        self._watch: asyncio.Task[None] | None = None
        self._disconnected = False
        self.answered_status: int | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeps is not None:
            self._sweeps.ended()
        if self._watch is not None:
            self._watch.cancel()
        if self._pending is not None and not self._pending.done:
            self._state.client.cancel(self._pending)

    def submit(self, job: Job) -> PendingRequest:
        """Send `job`; raises what `EngineClient.submit` raises, ClientGone, and RunInProgress."""
        if self._disconnected:
            raise ClientGone("the client closed the connection")
        if self._of_lab:
            self._state.studies.sweeps.refuse("a request of the lab")
        self._pending = self._state.client.submit(job, follows=self._pending is not None)
        if self._of_sweep and self._sweeps is None:
            self._sweeps = self._state.studies.sweeps
            self._sweeps.began()
        if self._watch is None:
            # After the job was sent, so that the engine need not wait for this.
            self._watch = asyncio.create_task(self._until_disconnect())
        return self._pending

    async def result(self, pending: PendingRequest, received_ns: int) -> RequestTiming:
        """Wait for the end and add up the time since `received_ns`, when the body was parsed.

        Raises the LaunchboundError that it ended with, counted where it is not a refusal.
        """
        try:
            outcome = await pending.outcome()
            if outcome.kind != "ok":
                raise from_problem(outcome.problem or default_problem(outcome.kind, of_job(pending.job)))
        except LaunchboundError as error:
            if error.rejection is None:
                seconds = (perf_counter_ns() - received_ns) / 1e9
                status = self.answered_status or error.status
                ending = ENDINGS.get(type(error), "error")
                self._state.failed(pending.job, error, ending, status, seconds)
            raise
        return add_up(pending.job, outcome, received_ns, pending.outcome_ns, perf_counter_ns())

    async def _until_disconnect(self) -> None:
        await _until_disconnect(self._receive)
        self._disconnected = True
        if self._pending is not None:
            self._state.client.cancel(self._pending)


def check_limits(
    state: AppState,
    prompts: Sequence[str | list[int]],
    new_tokens: int,
    names: tuple[str, str] = ("prompts", "max_new_tokens"),
) -> None:
    """Raise BadRequest, naming field and limit, for what this instance cannot run in any mode.

    `names` are those of the two fields. Text that takes the engine's thread long to encode is refused here.
    """
    engine = state.client.engine
    if engine is None:
        return
    param, most = names[0], engine.prompt_bytes
    for prompt in prompts:
        # No character of a string has more than four bytes, so that a usual prompt is not encoded here.
        if most is None or not isinstance(prompt, str) or 4 * len(prompt) <= most:
            continue
        if (size := len(prompt.encode(errors="replace"))) > most:
            message = (
                f"{param}: a prompt of {size} bytes is over the limit of {most} for a context of "
                f"{engine.context}: shorten it"
            )
            raise BadRequest(message, type="prompt_too_long", param=param)
    if new_tokens >= engine.context:
        message = f"{names[1]}: {new_tokens} and a prompt are over the context of {engine.context}"
        raise BadRequest(message, param=names[1])


def check_sample(state: AppState, sample: bool, profile: bool) -> None:
    """Raise CannotSample or BadRequest where a request that is to be sampled cannot be."""
    if not sample:
        return
    engine = state.client.engine
    if engine is not None and engine.no_samples is not None:
        raise CannotSample(f"sample: leave it out; {engine.no_samples}", param="sample")
    if profile:
        raise BadRequest("sample: a request is profiled or sampled, not both", param="sample")


def new_job(state: AppState, request_id: str, received_ns: int, **fields: Any) -> Job:  # noqa: ANN401
    """A job with these `fields`, stamped as sent now; its deadline counts from `received_ns`."""
    deadline_ns = received_ns + round(state.settings.request_timeout_seconds * 1e9)
    return Job(request_id=request_id, sent_ns=perf_counter_ns(), deadline_ns=deadline_ns, **fields)


def default_problem(kind: OutcomeKind, workload: Workload) -> Problem:
    """Of an outcome of this kind, where the engine gives none."""
    late = f"the deadline passed before the answer was complete: ask for {workload.shorter}"
    type_, message = {
        "timeout": ("timeout", late),
        "cancelled": ("cancelled", "the client closed the connection"),
        "oom": ("out_of_memory", f"the device is out of memory: send {workload.smaller}"),
    }.get(kind, ("internal", "the engine failed and gave no reason"))
    return Problem(type=type_, message=message)


ENDINGS: dict[type, Ending] = {DeadlinePassed: "timeout", ClientGone: "cancelled", OutOfMemory: "oom"}


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns or raises. Raises ClientGone, and has cancelled it, once the client closes."""
    running = asyncio.create_task(work)
    gone = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientGone("the client closed the connection")
        return running.result()
    finally:
        gone.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class Answers(Protocol):
    """How one route encodes its plain answer, and the parts of its stream."""

    def answer(self, timing: RequestTiming) -> object: ...

    def tokens(self, tokens: Sequence[Token]) -> bytes: ...

    def end(self, timing: RequestTiming) -> bytes: ...

    def error(self, error: LaunchboundError) -> bytes: ...


class EventStream(EventAnswer):
    def __init__(self, state: AppState, job: Job, received_ns: int, events: Answers) -> None:
        super().__init__()
        self._state = state
        self._job = job
        self._received_ns = received_ns
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until the job has ended; the request is observed when its last event has been sent."""
        async with EngineCall(self._state, scope, receive) as call:
            pending = call.submit(self._job)
            self._state.observe_next()  # earlier requests, while the engine works
            while tokens := await pending.tokens():
                await self.send_events(send, self._events.tokens(tokens))
            call.answered_status = self.status_code if self.started else None
            try:
                timing = await call.result(pending, self._received_ns)
            except LaunchboundError as error:
                if not self.started:
                    raise
                await self.send_events(send, self._events.error(error), last=True)
                return
            await self.send_events(send, self._events.end(timing), last=True)
        self._state.observe_soon(timing)


async def respond(
    state: AppState, request: Request, job: Job, received_ns: int, answers: Answers
) -> Response:
    """Run `job` and answer at once or as a stream; `received_ns` is when the body was parsed."""
    if job.stream:
        return EventStream(state, job, received_ns, answers)
    return await answer_once(state, request, job, received_ns, answers.answer)


async def answer_once(
    state: AppState, request: Request, job: Job, received_ns: int, answer: Callable[[RequestTiming], object]
) -> Response:
    """Run `job` and answer with what `answer` makes of it; `received_ns` is when the body was parsed."""
    async with EngineCall(state, request.scope, request.receive) as call:
        pending = call.submit(job)
        state.observe_next()  # earlier requests, while the engine works
        timing = await call.result(pending, received_ns)
    body = answer(timing)
    state.observe_soon(timing)
    return reply(body, {"Server-Timing": server_timing(timing.parts)})
