"""The command line. Exit codes: 0 good, 1 a gate or check failed, 2 bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NoReturn, cast

import typer
from pydantic import ValidationError
from rich.console import Console

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    help="Serve a transformer through PyTorch's inference modes, and measure where each request's time went.",
)  # fmt: skip

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def bad_input(message: object) -> NoReturn:
    """Say what is wrong and how to mend it, and end with exit code 2."""
    typer.echo(f"launchbound: {message}", err=True)
    raise typer.Exit(EXIT_BAD_INPUT)


def settings_from(**options: Any) -> Any:  # noqa: ANN401 - Settings is imported late: it is heavy for `--help`
    """Settings of the environment with `options` over them; unknown or wrong ones end the program."""
    from service.settings import Settings

    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        bad_input("; ".join(problems))


Model = Annotated[str | None, typer.Option(help="tiny, small, base, a folder, hf:FOLDER or hf:HUB-ID.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or autocast-bfloat16.")]
Modes = Annotated[str | None, typer.Option(help="Modes, with commas.")]
BatchSizes = Annotated[str | None, typer.Option(help="Batch buckets, with commas.")]


@app.command()
def serve(
    model: Model = None, device: Device = None, dtype: Dtype = None, modes: Modes = None,
    batch_sizes: BatchSizes = None, host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0 takes a free one.")] = None,
) -> None:  # fmt: skip
    """Serve on 127.0.0.1:8000 until told to stop. Settings may also come as LAUNCHBOUND_<NAME>."""
    settings = settings_from(
        model=model, device=device, dtype=dtype, modes=modes, batch_sizes=batch_sizes, host=host, port=port
    )
    from service.app import serve as serve_until_stopped

    raise typer.Exit(serve_until_stopped(settings))


@app.command()
def stack(
    model: Model = None, device: Device = None, dtype: Dtype = None, modes: Modes = None,
    batch_sizes: BatchSizes = None,
    port: Annotated[int, typer.Option(help="Port of the service; 0 takes a free one.")] = 8000,
    prometheus_port: Annotated[int, typer.Option(help="Port of Prometheus; 0 takes a free one.")] = 9090,
    scrape_seconds: Annotated[
        int, typer.Option(min=1, max=60, help="How often Prometheus asks; 1 to follow a short sweep.")
    ] = 5,
) -> None:  # fmt: skip
    """Serve, with Prometheus beside where its binary is on this machine, until Ctrl-C. Without Docker."""
    served = {"model": model, "device": device, "dtype": dtype, "modes": modes, "batch_sizes": batch_sizes,
              "port": port, "host": "127.0.0.1"}  # fmt: skip
    folder = Path(settings_from(**served).cache_folder) / "stack"
    folder.mkdir(parents=True, exist_ok=True)
    from dashboards.local import PrometheusError
    from dashboards.stack import watch
    from service.launch import LaunchError, launched

    # A supervisor's SIGTERM ends both in order, as Ctrl-C does; a shell's background job ignores SIGINT.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    try:
        with launched(_flags(served), folder / "service.log") as url:
            binary = shutil.which("prometheus")
            code = watch(url, binary, folder, prometheus_port, scrape_seconds, typer.echo)
    except (LaunchError, PrometheusError) as error:
        bad_input(error)
    raise typer.Exit(code)


def _flags(options: dict[str, Any]) -> list[str]:
    """Options as `launchbound serve` takes them; None is left to its default."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


@app.command()
def sweep(
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    preset: Annotated[str, typer.Option(help="quick, standard, full or gpu.")] = "quick",
    out: Annotated[Path | None, typer.Option(help="Results folder; default results/<UTC>-<commit>.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes orders, prompts and arrivals.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    model: Model = None, device: Device = None, dtype: Dtype = None, modes: Modes = None,
    batch_sizes: BatchSizes = None,
) -> None:  # fmt: skip
    """Measure modes against batch sizes in rounds, and write the report."""
    from loadtests.plan import PlanError
    from loadtests.presets import Preset, describe, make_plan
    from loadtests.sweep import new_folder

    try:
        sizes = [int(size) for size in _words(batch_sizes) or ()]
        plan = make_plan(cast(Preset, preset), seed, _words(modes), sizes or None)
    except (PlanError, ValueError) as error:
        bad_input(error)
    if dry_run:
        typer.echo(describe(plan))
        return
    if url and (model or device or dtype):
        bad_input("--model, --device and --dtype belong to the service: leave them out where --url names one")
    folder = out or new_folder()
    folder.mkdir(parents=True, exist_ok=True)
    options = {"model": model, "device": device, "dtype": dtype}
    raise typer.Exit(_sweep(url, plan, folder, options))


def _sweep(url: str | None, plan: Any, folder: Path, options: dict[str, str | None]) -> int:  # noqa: ANN401
    from loadtests.prompts import PromptError
    from loadtests.rows import RowsError
    from loadtests.sweep import SweepResult, run_sweep
    from loadtests.target import ModeFailed, TargetError
    from service.launch import LaunchError, launched

    console = Console()

    def run(at: str, settings: dict[str, Any]) -> SweepResult:
        return run_sweep(at, plan, folder, console=console, settings=settings)

    try:
        if url:
            result = run(url, {})
        else:
            served = {
                **options, "modes": ",".join(plan.modes),
                "batch_sizes": ",".join(map(str, plan.batch_sizes)),
            }  # fmt: skip
            settings_from(**served)
            with launched(_flags(served), folder / "service.log") as own:
                result = run(own, {name: value for name, value in served.items() if value})
    except ModeFailed as error:
        return _no_answer(folder, [], error)
    except (LaunchError, PromptError, TargetError) as error:
        bad_input(error)
    failed = [f"FAILED  {gate.name}: {gate.detail}" for gate in result.failed]
    try:
        _conclude(folder, console, failed)
    except RowsError as error:
        return _no_answer(folder, failed, error)
    return result.exit_code


def _no_answer(folder: Path, failed: Sequence[str], why: Exception) -> int:
    """A sweep that measured nothing: failed gates, the reason, and the JSON line all the same."""
    for line in failed:
        typer.echo(line)
    typer.echo(f"launchbound: {why}", err=True)
    _last_line(folder, None, valid=False)
    return EXIT_FAILED


def _last_line(folder: Path, headline: dict[str, Any] | None, valid: bool) -> None:
    typer.echo(json.dumps({"path": str(folder), "headline": headline, "valid": valid}))


def _conclude(folder: Path, console: Console, failed: Sequence[str] = ()) -> None:
    """The table, where the report is, one JSON line last. Raises RowsError where there is nothing."""
    headline: dict[str, Any] | None = None
    valid = not failed
    try:
        from loadtests.report import make_report, print_table
    except ImportError as error:
        for line in failed:
            console.print(line, soft_wrap=True)
        console.print(
            f"{error.name} is not installed here: the report is made later by `launchbound report {folder}`"
        )
    else:
        headline = make_report(folder)
        valid = bool(headline["valid"])
        print_table(folder, console)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    _last_line(folder, headline, valid)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    mode: Annotated[str, typer.Option(help="One rung of the ladder.")] = "eager",
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(min=1)] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    model: Model = None, device: Device = None, dtype: Dtype = None,
) -> None:  # fmt: skip
    """Complete a prompt, streamed, and show where its time went."""
    if url and (model or device or dtype):
        bad_input("--model, --device and --dtype belong to the service: leave them out where --url names one")
    from loadtests.generate import Asked, GenerationFailed, show
    from loadtests.target import ModeFailed, TargetError
    from service.launch import LaunchError

    served = {"model": model, "device": device, "dtype": dtype, "modes": mode, "batch_sizes": "1"}
    asked = Asked(prompt, mode, max_new_tokens, temperature, top_k, seed)
    try:
        with _service(url, served) as at:
            key, own = os.environ.get("LAUNCHBOUND_API_KEY"), url is None
            show(at, key, asked, Console(), Console(stderr=True), settled=own)
    except (GenerationFailed, ModeFailed) as error:
        typer.echo(f"launchbound: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (LaunchError, TargetError) as error:
        bad_input(error)


@contextmanager
def _service(url: str | None, served: dict[str, Any]) -> Iterator[str]:
    """The URL of a service: the given one, or one of our own that ends with the block."""
    if url:
        yield url
        return
    settings_from(**served)
    from loadtests.target import Unreachable
    from service.launch import LaunchError, last_words, launched

    with TemporaryDirectory(prefix="launchbound-") as folder:
        log = Path(folder) / "service.log"
        try:
            with launched(_flags(served), log) as own:
                yield own
        except Unreachable as error:
            raise LaunchError(f"the service ended: {last_words(log)}") from error


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A results folder of `sweep`.")]) -> None:
    """Write report.html and report.md again from a folder's rows."""
    from loadtests.rows import RowsError

    try:
        _conclude(folder, Console())
    except (RowsError, FileNotFoundError) as error:
        bad_input(error)


@app.command()
def parity(
    model: Model = None, device: Device = None, dtype: Dtype = None, modes: Modes = None,
    batch_sizes: BatchSizes = None,
) -> None:  # fmt: skip
    """Run every mode teacher-forced beside eager, and say whether it still computes the same."""
    settings = settings_from(model=model, device=device, dtype=dtype, modes=modes, batch_sizes=batch_sizes)
    from service.parity_check import check_parity

    try:
        raise typer.Exit(check_parity(settings.engine_settings("")))
    except ValueError as error:
        bad_input(error)


@app.command()
def selftest(
    only: Annotated[str | None, typer.Option(help="Checks to run, with commas; default all.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default results/selftest-<UTC>-<commit>.")] = None,
    model: Model = None, device: Device = None, dtype: Dtype = None, modes: Modes = None,
) -> None:  # fmt: skip
    """Prove on this machine that the numbers are right; some minutes, exit code 1 where a check fails."""
    settings = settings_from(model=model, device=device, dtype=dtype, modes=modes)
    from service.selftest.run import main

    try:
        raise typer.Exit(main(settings, _words(only), out))
    except ValueError as error:
        bad_input(error)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
More = Annotated[list[str] | None, typer.Option("--set", help="Any argument of the study, as NAME=VALUE.")]


@app.command()
def anatomy(
    mode: Annotated[str | None, typer.Option(help="The mode to look into.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in the step.")] = None,
    phase: Annotated[str | None, typer.Option(help="decode or prefill.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="What each layer of PyTorch takes.")] = False,
    budget: Annotated[bool, typer.Option("--budget", help="Dispatch against kernels by batch.")] = False,
    tape: Annotated[bool, typer.Option("--tape", help="What autograd records and saves.")] = False,
    timeline: Annotated[bool, typer.Option("--timeline", help="Host and device side by side.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="What the allocator holds.")] = False,
    expression: Annotated[str | None, typer.Option(help="With --tape: block, step or your own.")] = None,
    against: Annotated[str | None, typer.Option(help="With --timeline: a second mode.")] = None,
    out: Annotated[Path | None, typer.Option(help="With --timeline or --memory: a folder for files.")] = None,
    more: More = None, as_json: Json = False, model: Model = None, device: Device = None, dtype: Dtype = None,
) -> None:  # fmt: skip
    """What one step of a mode does, operator by operator; or another study, by its option."""
    asked = {"layers": layers, "budget": budget, "tape": tape, "timeline": timeline, "memory": memory}
    chosen = [name for name, wanted in asked.items() if wanted] or ["operators"]
    if len(chosen) > 1:
        bad_input(f"one study at a time: --{' or --'.join(chosen)}")
    arguments = {"mode": mode, "batch_size": batch_size, "phase": phase, "expression": expression,
                 "against": against, "out": out and str(out)}  # fmt: skip
    served = {"model": model, "device": device, "dtype": dtype}
    _study(chosen[0], arguments, more, as_json, served)


@app.command()
def probe(
    name: Annotated[str, typer.Argument(help="As GET /v1/probes lists them.")],
    more: More = None, as_json: Json = False, model: Model = None, device: Device = None, dtype: Dtype = None,
) -> None:  # fmt: skip
    """One pitfall, live: a step without and with it, the counter that moved, the line to blame, the cure."""
    from service.border.probes import PROBES

    if name not in PROBES:
        bad_input(f"no probe '{name}'; try one of {', '.join(PROBES)}")
    _study("probes", {"name": name}, more, as_json, {"model": model, "device": device, "dtype": dtype})


def _study(
    name: str, arguments: dict[str, Any], more: Sequence[str] | None, as_json: bool, served: dict[str, Any]
) -> None:
    settings = settings_from(**served)
    if size := arguments.get("batch_size"):
        settings = settings_from(**served, batch_sizes=[*settings.batch_sizes, size])
    from service.anatomy.console import further_arguments, main
    from service.anatomy.errors import StudyError

    try:
        main(settings.engine_settings(""), name, arguments | further_arguments(more or ()), as_json)
    except StudyError as error:
        bad_input(error)


def _words(text: str | None) -> list[str] | None:
    return [word.strip() for word in text.split(",") if word.strip()] if text else None


if __name__ == "__main__":
    app(prog_name="launchbound")
