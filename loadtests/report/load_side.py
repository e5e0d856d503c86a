"""The load generator in a report's environment: its processes, their CPU, and its schedule delay."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from loadtests.report.formatting import cores, milliseconds
from loadtests.report.results import Results


def load_side(results: Results) -> Iterator[tuple[str, str]]:
    """The lines about the load generator, as label and text."""
    client, workers = results.run.client, results.run.settings.get("workers", 1)
    processes = f"{workers} load processes and their master, all" if workers > 1 else "one process"
    yield "load generator", f"{processes} on {cores(client.cpus)}"
    share = "not known" if client.cpu_share is None else f"{client.cpu_share:.0%} of one core"
    yield "CPU of the load generator", f"{share}, of its busiest process or core" if workers > 1 else share
    yield "schedule delay", _schedule_delay(results)


def _schedule_delay(results: Results) -> str:
    """How late open-loop requests left: quantiles of start − due time over all that were measured."""
    opened = pl.col("load").is_not_null() | pl.col("cell").is_in(list(results.run.client.rates))
    delay = pl.col("start") - pl.col("intended_start")
    found = (
        results.rows.lazy()
        .filter(opened & (pl.col("stage") == "measure"))
        .select(
            pl.len().alias("requests"),
            delay.quantile(0.5, "linear").alias("p50"),
            delay.quantile(0.99, "linear").alias("p99"),
            delay.max().alias("max"),
        )
        .collect()
        .row(0, named=True)
    )
    if not found["requests"]:
        return "not measured: no request of this plan had a due time (an open loop's have)"
    quantiles = ", ".join(f"{name} {milliseconds(found[name])}" for name in ("p50", "p99", "max"))
    return f"{quantiles}, of {found['requests']:,} open-loop requests"
