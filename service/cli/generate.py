"""Sends one prompt to a running service and shows its text as it streams, then where its time went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from loadtests.report.formatting import milliseconds, significant
from loadtests.run.readiness import await_modes
from loadtests.run.target import RequestRefused, Target, TargetError
from service.cli.timing_bar import timing_bar

READ_TIMEOUT_SECONDS = 600.0
"""Read timeout: longer than the service's own deadline, after which it answers."""

TOO_MANY = 429
_PRINTABLE = {ord("\n"), ord("\t")}
_CONTROL = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if code not in _PRINTABLE}


class GenerationFailed(RuntimeError):
    """The service accepted the request and could not complete it."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt, its mode and its sampling parameters."""

    prompt: str
    mode: str
    max_new_tokens: int
    temperature: float = 0.0
    top_k: int | None = None
    seed: int | None = None

    def body(self) -> dict[str, object]:
        """The request's JSON."""
        return {
            "prompts": [self.prompt],
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "seed": self.seed,
            "stream": True,
        }


def show(
    url: str,
    api_key: str | None,
    request: GenerationRequest,
    console: Console,
    progress: Console,
    settled: bool = False,
) -> None:
    """Generate at `url` once the mode is ready: text and bar to `console`, the wait to `progress`.

    `settled`: wait until all warm-up is over, so that the request does not queue behind the rest of it.
    Raises GenerationFailed, ModeFailed where the mode failed to warm up, or TargetError where the request
    cannot be served or nothing answers.
    """
    target = Target(url, api_key, READ_TIMEOUT_SECONDS)
    with progress.status(f"waiting for {request.mode}") as status:
        await_modes(target, [request.mode], status.update, settled=settled)
    try:
        result = _stream(target, request, console)
    except (GenerationFailed, TargetError):
        console.out("")  # the error goes on a line of its own
        raise
    sampled = request.temperature > 0
    timings, usage = result["timings"], result["usage"]
    console.print(f"\n\n{_headline(result)}", style="bold", highlight=False)
    console.print(timing_bar(timings, sampled))
    first = milliseconds(timings["time_to_first_token_seconds"])
    tokens = usage["completion_tokens"]
    rate = tokens / timings["total_seconds"]
    text = f"first token after {first}; {tokens} tokens, {significant(rate)} per second"
    console.print(text, highlight=False)


def _stream(target: Target, request: GenerationRequest, console: Console) -> dict[str, Any]:
    """Print the text as it arrives; returns the answer that comes last."""
    console.out(printable(request.prompt), end="", style="dim", highlight=False)
    try:
        for name, data in target.stream(f"/v1/modes/{request.mode}/generate", request.body()):
            if name == "token":
                console.out(printable(data["text"]), end="", highlight=False)
            elif name == "error":
                raise GenerationFailed(str(data["error"]["message"]))
            else:
                result: dict[str, Any] = data
                return result
    except RequestRefused as error:
        if error.status >= 500 or error.status == TOO_MANY:
            raise GenerationFailed(str(error)) from error
        raise
    raise GenerationFailed(f"{target.url} ended the stream before its result: see the service's log")


def _headline(result: dict[str, Any]) -> str:
    mode = result["mode"]
    here = f" (here: {mode['effective']})" if mode["effective"] != mode["requested"] else ""
    total = milliseconds(result["timings"]["total_seconds"])
    return f"{result['model']} in {mode['requested']}{here} on {result['device']}: {total}"


def printable(text: str) -> str:
    """`text` with the control characters that a terminal would execute replaced."""
    return text.translate(_CONTROL)
