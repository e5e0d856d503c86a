"""Sends one prompt to a running service and shows its text as it streams, then where its time went."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtests.report.formatting import milliseconds, significant
from loadtests.run.target import RequestRefused, Target, TargetError, await_modes

READ_TIMEOUT_SECONDS = 600.0
"""Read timeout: longer than the service's own deadline, after which it answers."""

_PRINTABLE = {ord("\n"), ord("\t")}
_CONTROL = {code: "\ufffd" for code in [*range(32), *range(127, 160)] if code not in _PRINTABLE}


class GenerationFailed(RuntimeError): ...


def show(url: str, mode: str, prompt: str, parameters: Mapping[str, Any], settled: bool) -> dict[str, Any]:
    """Generate at `url` once `mode` is ready: print text and times, and the wait to standard error.

    Returns the answer. `parameters` are of the request's body. `settled`: wait until all warm-up is over, so
    that the request does not queue behind the rest of it. Raises GenerationFailed, ModeFailed where the mode
    failed to warm up, or TargetError where the request cannot be served or nothing answers.
    """
    console = Console()
    target = Target(url, os.environ.get("LAUNCHBOUND_API_KEY"), READ_TIMEOUT_SECONDS)
    with Console(stderr=True).status(f"waiting for {mode}") as status:
        await_modes(target, [mode], status.update, settled=settled)
    console.out(printable(prompt), end="", style="dim", highlight=False)
    try:
        result = _stream(target, mode, {**parameters, "prompts": [prompt], "stream": True}, console)
    except (GenerationFailed, TargetError):
        console.out("")  # the error goes on a line of its own
        raise
    timings, tokens = result["timings"], result["usage"]["completion_tokens"]
    console.print(f"\n\n{_headline(result)}", style="bold", highlight=False)
    console.print(timing_table(timings, sampled=parameters["temperature"] > 0))
    first = milliseconds(timings["time_to_first_token_seconds"])
    rate = significant(tokens / timings["total_seconds"])
    console.print(f"first token after {first}; {tokens} tokens, {rate} per second", highlight=False)
    return result


def _stream(target: Target, mode: str, body: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Print the text as it arrives; returns the answer that comes last."""
    try:
        for name, data in target.stream(f"/v1/modes/{mode}/generate", body):
            if name == "token":
                console.out(printable(data["text"]), end="", highlight=False)
            elif name == "error":
                raise GenerationFailed(str(data["error"]["message"]))
            else:
                result: dict[str, Any] = data
                return result
    except RequestRefused as error:
        if error.status >= 500 or error.status == 429:
            raise GenerationFailed(str(error)) from error
        raise
    raise GenerationFailed(f"{target.url} ended the stream before its result: see the service's log")


def _headline(result: dict[str, Any]) -> str:
    mode = result["mode"]
    here = f" (here: {mode['effective']})" if mode["effective"] != mode["requested"] else ""
    total = milliseconds(result["timings"]["total_seconds"])
    return f"{result['model']} in {mode['requested']}{here} on {result['device']}: {total}"


def printable(text: str) -> str:
    return text.translate(_CONTROL)


def timing_table(timings: Mapping[str, Any], sampled: bool) -> Table:
    """The parts that add up to the total: percent, milliseconds, and the source of each.

    `timings` are those of an answer. On a CPU kernels are a part of their own; on CUDA they run beside the
    host, which waits. `sampled`: sampling operators ran, which count as dispatch.
    """
    sources = timings.get("sources") or {}
    if timings["sync_wait_seconds"] is None:
        beside, note = "kernel", sources.get("kernel") or ""
    else:
        beside, note = "sync_wait", _kernel_note(timings, sources)
    unknown = [name for name in ("dispatch", beside) if timings[f"{name}_seconds"] is None]
    notes = {
        "queue": "",
        "dispatch": _dispatch_note(timings, sources, sampled),
        beside: note,
        "stall": "others, merged with it, were prefilled",
        "other": f"{' and '.join(unknown)} in it: not measured here" if unknown else "",
    }
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    for part, text in notes.items():
        seconds = timings.get(f"{part}_seconds")
        if part != "stall" or seconds is not None:
            share = "–" if seconds is None else f"{seconds / timings['total_seconds']:.0%}"
            table.add_row(part.replace("_", " "), share, milliseconds(seconds), escape(text))
    return table


def _dispatch_note(timings: Mapping[str, Any], sources: Mapping[str, Any], sampled: bool) -> str:
    if sources.get("dispatch") != "sampled":
        return sources.get("dispatch") or ""
    phases = [timings[name] for name in ("prefill", "decode")]
    ends = [sum(phase.get(f"dispatch_{end}_seconds") or 0.0 for phase in phases) for end in ("low", "high")]
    of_tokens = ", token sampling and its kernels included" if sampled else ""
    return f"sampled, {milliseconds(ends[0])} to {milliseconds(ends[1])}{of_tokens}"


def _kernel_note(timings: Mapping[str, Any], sources: Mapping[str, Any]) -> str:
    if timings["kernel_seconds"] is None:
        return "kernels ran beside the host, for an unknown time until a request is profiled"
    return f"kernels ran for {milliseconds(timings['kernel_seconds'])} beside the host ({sources['kernel']})"
