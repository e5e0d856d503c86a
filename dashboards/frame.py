"""What the three boards share: variables, links that keep variables and time, annotations, numbering."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as shapes
from grafana_foundation_sdk.models.prometheus import Dataquery

from dashboards.panels import DATASOURCE, Panel
from dashboards.promql import HERE, series

TAG = "launchbound"
DESCRIPTIONS = Path(__file__).parent / "descriptions.toml"
DEFAULT_SLO = "0.1"


def board(name: str, rows: Mapping[str, Sequence[Panel]]) -> shapes.Dashboard:
    """A whole board from its rows (title → panels), numbered from 1 in reading order.

    Title, description and the panels' descriptions come from `[name]` of descriptions.toml. Raises ValueError
    where a panel has no description there, or a description no panel.
    """
    descriptions = tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))[name]
    built = (
        Dashboard(descriptions["title"])
        .uid(f"launchbound-{name}")
        .description(descriptions["description"])
        .tags([TAG])
    )
    built.editable().refresh("5s").time("now-15m", "now").timezone("browser")
    built.tooltip(shapes.DashboardCursorSync.CROSSHAIR).variables(_variables()).link(_link_to_siblings())
    for annotation in _annotations():
        built.annotation(annotation)
    for row_title, panels in rows.items():
        built.with_row(Row(row_title))
        for panel in panels:
            built.with_panel(panel)
    made = built.build()
    for number, placed in enumerate(made.panels or [], start=1):
        placed.id_val = number
    _describe(
        [placed for placed in made.panels or [] if isinstance(placed, shapes.Panel)], descriptions["panels"]
    )
    return made


def _describe(panels: Sequence[shapes.Panel], descriptions: Mapping[str, str]) -> None:
    unmatched = {str(panel.title) for panel in panels} ^ descriptions.keys()
    if unmatched:
        raise ValueError(f"panels and descriptions.toml disagree on: {', '.join(sorted(unmatched))}")
    for panel in panels:
        read = [target.expr for target in panel.targets or [] if isinstance(target, Dataquery)]
        names = metrics_read(" ".join(read))
        panel.description = (
            f"{descriptions[str(panel.title)]}\n\nFrom {', '.join(f'`{name}`' for name in names)}."
        )


def metrics_read(expr: str) -> list[str]:
    """Names of the metrics in `expr`, sorted, a histogram's and a summary's parts under their common name."""
    names = re.findall(r"\b[a-zA-Z_]\w*(?=\{)", expr)
    return sorted({re.sub(r"_(bucket|sum|count)$", "", name) for name in names})


def _variables() -> list[Builder[shapes.VariableModel]]:
    boundaries = _query(
        "slo",
        "SLO",
        f"label_values({series('request_duration_seconds_bucket')}, le)",
        "Bucket boundary in seconds that counts as in time; only boundaries are exact.",
    )
    boundaries.sort(shapes.VariableSort.NUMERICAL_ASC).regex("/^[0-9].*/")
    boundaries.current(shapes.VariableOption(text=DEFAULT_SLO, value=DEFAULT_SLO))
    return [
        DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _all(_query("job", "Job", "label_values(launchbound_engine_up, job)", "Scrape job of the service.")),
        _all(
            _query(
                "instance",
                "Instance",
                'label_values(launchbound_engine_up{job=~"$job"}, instance)',
                "One service each; two instances compare two machines or settings.",
            )
        ),
        _all(
            _query(
                "mode",
                "Mode",
                f"label_values({series('requests_total', HERE)}, mode)",
                "Inference modes; `fallback` is what ran as another mode than the requested one.",
            )
        ),
        boundaries,
    ]


def _query(name: str, label: str, query: str, description: str) -> QueryVariable:
    variable = QueryVariable(name).label(label).description(description).datasource(DATASOURCE)
    variable.query({"query": query, "refId": f"variable-{name}"}).definition(query)
    return variable.refresh(shapes.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(
        shapes.VariableSort.NATURAL_ASC
    )


def _all(variable: QueryVariable) -> QueryVariable:
    """Multi-value, with all values selected at first (`.*`, so that later ones are included)."""
    every = shapes.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.multi(True).include_all(True).all_value(".*").current(every)


def _link_to_siblings() -> DashboardLink:
    link = DashboardLink("launchbound boards").type(shapes.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(False).include_vars(True).keep_time(True)


def _annotations() -> list[AnnotationQuery]:
    ready = f"max by (instance, mode) ({series('mode_ready')})"
    was_ready = f"max by (instance, mode) ({series('mode_ready')} offset 1m)"
    return [
        _annotation(
            "Mode ready", f"{ready} == 1 unless {was_ready} == 1", "#2A9D8F", "{{mode}} became ready"
        ),
        _annotation(
            "Engine restart",
            f"increase({series('engine_restarts_total', HERE)}[1m]) > 0",
            "#D1495B",
            "engine of {{instance}} restarted",
        ),
        _annotation("Sweep", "max by (run) (launchbound_loadtest_run_info)", "#8E6BBF", "sweep {{run}}"),
    ]


def _annotation(name: str, expr: str, colour: str, title: str) -> AnnotationQuery:
    """Grafana joins neighbouring points to a region, so a lasting series shows its start and its end."""
    return (
        AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(colour)
        .expr(expr)
        .step("10s")
        .title_format(title)
        .text_format("")
        .tag_keys("instance,mode,run")
    )
