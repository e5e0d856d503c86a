"""The commands that start a service: `serve`, `stack`, `startup` and `generate`."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from service.cli.options import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    Advice,
    BatchSizes,
    Device,
    Dtype,
    Json,
    Model,
    Modes,
    bad_input,
    ended_in_order,
    flags,
    installing,
    print_result,
    report_extra_needed,
    settings_from,
    terminal,
)

app = typer.Typer()


@app.command(epilog="Example: launchbound serve --model small --batch-sizes 1,8")
def serve(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    require_modes: Annotated[
        str | None,
        typer.Option(
            help="Modes, comma-separated, without which it is not ready; default: all but failed ones."
        ),
    ] = None,
    batch_sizes: BatchSizes = None,
    host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 0 takes a free one.")] = None,
    advice: Advice = None,
    batching: Annotated[
        Literal["off", "continuous"] | None,
        typer.Option(help="Whether requests that wait are merged; default off."),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"] | None, typer.Option(help="json: one object per line; default text.")
    ] = None,
    log_requests: Annotated[
        Literal["all", "failed", "off"] | None,
        typer.Option(help="Requests that get a line in the log; default all."),
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(help="Serve N replicas on Ray, or MIN-MAX to autoscale.")
    ] = None,
    replica_cpus: Annotated[
        int | None,
        typer.Option(min=1, help="Cores of each replica; default 2, or 1 if there are too few."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster for --replicas: HOST:PORT or auto; default: a new one."),
    ] = None,
) -> None:
    """Serve on 127.0.0.1:8000 until a signal stops it. Settings may also come as LAUNCHBOUND_<NAME>."""
    settings = settings_from(
        address is not None,
        model=model,
        device=device,
        dtype=dtype,
        modes=modes,
        require_modes=require_modes,
        batch_sizes=batch_sizes,
        host=host,
        port=port,
        advice=advice,
        batching=batching,
        log_format=log_format,
        log_requests=log_requests,
    )
    if replicas is not None:
        raise typer.Exit(serve_on_ray(settings, replicas, replica_cpus, address))
    if (replica_cpus, address) != (None, None):
        bad_input("--replica-cpus and --address belong to --replicas: add it, or leave them out")
    from service.front.app import serve as serve_until_stopped

    raise typer.Exit(serve_until_stopped(settings))


def serve_on_ray(
    settings: Any,  # noqa: ANN401 - as `settings_from` returns them
    replicas: str,
    cpus: int | None,
    address: str | None,
    engine_command: Sequence[str] | None = None,
) -> int:
    """Serve `settings` as `replicas`, with `cpus` each, on the Ray at `address`; returns the exit code.

    0 after a signal, or where another command has taken over; 2 where the settings cannot be used, with the
    reason in the log; 1 where the cluster ended. `engine_command` replaces the command line of the engines.
    """
    import logging

    from service.ray_cluster import ClusterError, connected, environment

    log = logging.getLogger("launchbound.replicas")

    try:
        os.environ.update(environment(address))
        import ray
        from ray.serve.exceptions import RayServeException

        from service.front.logs import set_up
        from service.replicas import NotStarted, replica_count, serve_replicas

        count = replica_count(replicas)
        if settings.engine_cpus is not None or settings.front_cpus is not None:
            raise ValueError(
                "ENGINE_CPUS and FRONT_CPUS are of one service: give every replica cores by --replica-cpus"
            )
    except (ValueError, ClusterError) as error:
        bad_input(error)
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: {installing('ray')}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_up(settings.log_format)
    as_text = settings.log_format == "text"  # lines of JSON would get Ray's prefix
    try:
        # In order twice: Ray sets handlers of its own when it is connected to.
        with ended_in_order(), connected(address, log_to_driver=as_text), ended_in_order():
            serve_replicas(settings, count, cpus, address is None, engine_command)
    except KeyboardInterrupt:
        return 0
    except (ray.exceptions.RayError, RayServeException, ConnectionError) as error:
        log.error("the cluster has ended: %s", (str(error).splitlines() or [type(error).__name__])[0])
        return EXIT_FAILED
    except (ClusterError, NotStarted, ValueError, OSError) as error:
        log.error(str(error))
        return EXIT_BAD_INPUT
    return 0


@app.command(epilog="Example: launchbound stack --modes eager,compiled")
def stack(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
    port: Annotated[int, typer.Option(help="Port of the service; 0 takes a free one.")] = 8000,
    prometheus_port: Annotated[int, typer.Option(help="Port of Prometheus; 0 takes a free one.")] = 9090,
    scrape_seconds: Annotated[
        int, typer.Option(min=1, max=60, help="How often Prometheus scrapes; 1 to follow a short sweep.")
    ] = 5,
) -> None:
    """Serve until Ctrl-C, and run Prometheus too if its binary is installed. Needs no Docker."""
    served = {
        "model": model,
        "device": device,
        "dtype": dtype,
        "modes": modes,
        "batch_sizes": batch_sizes,
        "port": port,
        "host": "127.0.0.1",
    }
    cache = Path(settings_from(**served).cache_folder)
    # First and private: a umask may leave parents writable by a group, which a service refuses.
    folder = cache / "stack"
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    from dashboards.stack import PrometheusError, watch
    from service.front.launch import LaunchError, launched
    from service.parent_death import owned

    # A supervisor's SIGTERM ends both in order, as Ctrl-C does; a shell's background job ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ended_in_order(), launched(flags(served), folder / "service.log") as url:
            binary = shutil.which("prometheus")
            code = watch(url, binary, folder, prometheus_port, scrape_seconds, typer.echo, owned)
    except (LaunchError, PrometheusError) as error:
        bad_input(error)
    raise typer.Exit(code)


@app.command(epilog="Example: launchbound startup --cold 1 --warm 3 --modes inference_mode,compiled")
def startup(
    cold: Annotated[int, typer.Option(min=1, help="Starts with an empty cache.")] = 5,
    warm: Annotated[int, typer.Option(min=0, help="Starts with what a cold one compiled.")] = 5,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    modes: Modes = None,
    batch_sizes: BatchSizes = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default results/<UTC>-<commit>-startup.")] = None,
    _json: Json = False,
) -> None:
    """Start a service again and again, and show where the seconds until it is ready go.

    Cold and warm starts alternate; each has new processes, and their caches are their own. Exit codes: 0
    measured, 1 a mode failed, 2 bad input, 130 interrupted.
    """
    served = {"model": model, "device": device, "dtype": dtype, "modes": modes, "batch_sizes": batch_sizes}
    settings = settings_from(**served)
    with report_extra_needed():
        from loadtests.report.page import print_table
        from loadtests.startup import PAGE_FILE, as_json, run_starts, table
    from loadtests.run.folder import commit_name, results_path
    from loadtests.run.target import ModeFailed, Target, TargetError, Unreachable
    from service.front.launch import LaunchError, launched

    folder, cache = out or results_path(commit_name(), "startup"), settings.cache_folder
    folder.mkdir(parents=True, exist_ok=True)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "service.log"

    @contextmanager
    def launch(filled: Path) -> Iterator[Target]:
        own = {"LAUNCHBOUND_CACHE_FOLDER": str(filled)}
        with launched(flags(served), log, own, lost=(Unreachable,)) as url:
            yield Target(url, os.environ.get("LAUNCHBOUND_API_KEY"))

    counts: dict[Literal["cold", "warm"], int] = {"cold": cold, "warm": warm}
    try:
        with ended_in_order():
            starts = run_starts(launch, counts, settings.modes, cache, folder, typer.echo)
    except ModeFailed as error:
        typer.echo(f"launchbound: {error} (log: {log})", err=True)
        raise typer.Exit(EXIT_FAILED) from None
    except (LaunchError, TargetError) as error:
        bad_input(f"{error} (log: {log})")
    print_table(table(starts), terminal())
    typer.echo(f"page: {folder / PAGE_FILE}")
    print_result({"path": str(folder), **as_json(starts)})


@app.command(epilog='Example: launchbound generate "def mean(values):" --mode compiled')
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.")],
    mode: Annotated[str, typer.Option(help="The mode to run it in.")] = "eager",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate at most.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: greedy.")] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Sample from the K likeliest tokens; default: from all.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Makes sampling repeatable; default: a new one each time.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="A running service; without it one is started.")] = None,
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Complete a prompt, streamed, and show where its time went."""
    if url and (model or device or dtype):
        bad_input("--model, --device and --dtype belong to the service: leave them out where --url names one")
    from loadtests.run.target import ModeFailed, TargetError
    from service.cli.generate import GenerationFailed, show
    from service.front.launch import LaunchError

    served = {"model": model, "device": device, "dtype": dtype, "modes": mode, "batch_sizes": "1"}
    parameters = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "seed": seed}
    try:
        with ended_in_order(), _service(url, served) as at:
            result = show(at, mode, prompt, parameters, settled=url is None)
        if as_json:
            print_result(result)
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
    from loadtests.run.target import Unreachable
    from service.front.launch import launched

    with (
        TemporaryDirectory(prefix="launchbound-") as folder,
        launched(flags(served), Path(folder) / "service.log", lost=(Unreachable,)) as own,
    ):
        yield own
