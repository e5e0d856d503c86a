"""What the boards are made of: panels with fixed colours and a text for no data; variables, annotations."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

from grafana_foundation_sdk.builders import barchart, common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    FieldColor,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import Dataquery, PromQueryFormat

from dashboards.promql import HERE, series
from dashboards.theme import MODE_COLOURS, PLAIN, Scale

DATASOURCE = shapes.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = timeseries.Panel | stat.Panel | barchart.Panel | table.Panel
P = TypeVar("P", timeseries.Panel, stat.Panel, barchart.Panel, table.Panel)


Queries = Mapping[str, str]
"""By the name of a series (a legend template, or a table's column) its expression."""


class Style(TypedDict, total=False):
    """How a panel looks; `width` (8) and `height` (8) are in Grafana's grid of 24 columns.

    `empty` ("no traffic") is shown where no query has data.
    """

    scale: Scale
    width: int
    height: int
    empty: str


def graph(
    title: str,
    unit: str,
    queries: Queries,
    *,
    colours: Mapping[str, str] = MODE_COLOURS,
    stacked: bool = False,
    dashed: str | None = None,
    exemplars: bool = False,
    **style: Unpack[Style],
) -> timeseries.Panel:
    """Lines over time; with `stacked`, areas on top of each other; names that end in `dashed` are dashed.

    `exemplars`: the requests too that the expressions' buckets point to.
    """
    panel = _dressed(timeseries.Panel(), title, unit, style)
    for target in _targets(queries):
        target.range().format(PromQueryFormat.TIME_SERIES)
        panel.with_target(target.exemplar(True) if exemplars else target)
    legend = common.VizLegendOptions().show_legend(True).display_mode(shapes.LegendDisplayMode.LIST)
    panel.legend(legend.placement(shapes.LegendPlacement.BOTTOM))
    tooltip = common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI)
    panel.tooltip(tooltip.sort(shapes.SortOrder.DESCENDING))
    panel.line_width(2).fill_opacity(60 if stacked else 8).show_points(shapes.VisibilityMode.AUTO).min(0)
    if stacked:
        panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    if "scale" in style:
        line = common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(line)
    if dashed:
        dash = DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 4]})
        panel.override_by_regexp(f"/ {re.escape(dashed)}$/", [dash])
    return _coloured(panel, colours)


def number(title: str, unit: str, queries: Queries, **style: Unpack[Style]) -> stat.Panel:
    panel = _dressed(stat.Panel(), title, unit, {"height": 4, **style})
    for target in _targets(queries):
        panel.with_target(target.range().format(PromQueryFormat.TIME_SERIES))
    panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return panel.color_mode(shapes.BigValueColorMode.VALUE).graph_mode(shapes.BigValueGraphMode.AREA)


def bars_by_mode(
    title: str,
    unit: str,
    queries: Queries,
    *,
    colours: Mapping[str, str] = MODE_COLOURS,
    **style: Unpack[Style],
) -> barchart.Panel:
    """One bar per mode, stacked from one query per part; of a single query, in the mode's own colour."""
    panel = _tabled(_dressed(barchart.Panel(), title, unit, style), queries)
    for step in (_step("merge"), _columns(queries), _step("sortBy", sort=[{"field": "mode"}])):
        panel.with_transformation(step)
    panel.x_field("mode").stacking(shapes.StackingMode.NORMAL).orientation(shapes.VizOrientation.HORIZONTAL)
    if len(queries) == 1:
        panel.color_by_field("mode").override_by_name("mode", [_coloured_names()])
    return _coloured(panel.fill_opacity(85).show_value(shapes.VisibilityMode.AUTO), colours)


def bars_by_batch(title: str, unit: str, queries: Queries, **style: Unpack[Style]) -> barchart.Panel:
    """Groups of bars: one group per batch bucket, one bar per mode."""
    panel = _tabled(_dressed(barchart.Panel(), title, unit, style), queries)
    for step in _matrix(row="batch", column="mode"):
        panel.with_transformation(step)
    panel.x_field("batch\\mode").orientation(shapes.VizOrientation.VERTICAL)
    return _coloured(panel.fill_opacity(85).show_value(shapes.VisibilityMode.AUTO), MODE_COLOURS)


def grid(
    title: str, unit: str, queries: Queries, *, units: Mapping[str, str] | None = None, **style: Unpack[Style]
) -> table.Panel:
    """A table: a row per label set that the queries share, a column per query under its name.

    A query without a name gets no column: only its labels are shown.
    """
    panel = _tabled(_dressed(table.Panel(), title, unit, style), queries)
    panel.with_transformation(_step("merge")).with_transformation(_columns(queries))
    for column, of_column in (units or {}).items():
        panel.override_by_name(column, [DynamicConfigValue(id_val="unit", value=of_column)])
    as_text = DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"})
    return panel.override_by_name("mode", [_coloured_names(), as_text]).show_header(True).filterable(True)


def _dressed(panel: P, title: str, unit: str, style: Style) -> P:
    scale = style.get("scale", PLAIN)
    panel.title(title).unit(unit).datasource(DATASOURCE)
    panel.span(style.get("width", 8)).height(style.get("height", 8))
    steps = [Threshold(value=None, color=scale.base)]
    steps += [Threshold(value=value, color=colour) for value, colour in scale.steps]
    panel.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    return panel.no_value(style.get("empty", "no traffic"))


def _targets(queries: Queries) -> Iterator[prometheus.Dataquery]:
    for index, (name, expr) in enumerate(queries.items()):
        target = prometheus.Dataquery().expr(expr).legend_format(name).datasource(DATASOURCE)
        yield target.ref_id(chr(ord("A") + index))


def _tabled(panel: P, queries: Queries) -> P:
    for target in _targets(queries):
        panel.with_target(target.instant().format(PromQueryFormat.TABLE))
    return panel


def _coloured(panel: P, colours: Mapping[str, str]) -> P:
    panel.color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    for name, colour in colours.items():
        fixed = DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        panel.override_by_regexp(f"/^{re.escape(name)}( |$)/", [fixed])
    return panel


def _coloured_names() -> DynamicConfigValue:
    named = {mode: {"color": colour, "text": mode} for mode, colour in MODE_COLOURS.items()}
    return DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": named}])


def _step(kind: str, **options: object) -> DataTransformerConfig:
    return DataTransformerConfig(id_val=kind, options=options)


def _columns(queries: Queries) -> DataTransformerConfig:
    """Drop the time and call each query's value column by its name, in the queries' order."""
    letters = [chr(ord("A") + index) for index in range(len(queries))]
    values = [f"Value #{letter}" for letter in letters] if len(queries) > 1 else ["Value"]
    names = dict(zip(values, queries, strict=True))
    dropped = {"Time": True} | {value: True for value, name in names.items() if not name}
    order = {name: index for index, name in enumerate(["mode", *values])}
    return _step("organize", excludeByName=dropped, renameByName=names, indexByName=order)


def _matrix(row: str, column: str) -> list[DataTransformerConfig]:
    """Label `row` down, label `column` across: rows in numerical order, columns in the ladder's.

    Sorting needs numbers and bar names need strings, so the field is converted twice.
    """
    order = {name: index for index, name in enumerate([f"{row}\\{column}", *MODE_COLOURS])}
    return [
        _step("convertFieldType", conversions=[{"targetField": row, "destinationType": "number"}]),
        _step("sortBy", sort=[{"field": row}]),
        _step("convertFieldType", conversions=[{"targetField": row, "destinationType": "string"}]),
        _step("groupingToMatrix", rowField=row, columnField=column, valueField="Value", emptyValue="null"),
        _step("organize", indexByName=order),
    ]


TAG = "launchbound"
DESCRIPTIONS = Path(__file__).parent / "descriptions.toml"
DEFAULT_SLO = "0.1"


def board(name: str, rows: Mapping[str, Sequence[Panel]]) -> models.Dashboard:
    """A whole board from its rows (title → panels), numbered from 1 in reading order.

    Title, description and the panels' descriptions come from `[name]` of descriptions.toml. Raises ValueError
    where a panel has no description there, or a description no panel.
    """
    descriptions = tomllib.loads(DESCRIPTIONS.read_text(encoding="utf-8"))[name]
    built = Dashboard(descriptions["title"]).uid(f"launchbound-{name}").tags([TAG])
    built.description(descriptions["description"]).editable().refresh("5s").time("now-15m", "now")
    built.timezone("browser").tooltip(models.DashboardCursorSync.CROSSHAIR)
    siblings = DashboardLink("launchbound boards").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    built.variables(_variables()).link(siblings.as_dropdown(False).include_vars(True).keep_time(True))
    for annotation in _annotations():
        built.annotation(annotation)
    for row_title, panels in rows.items():
        built.with_row(Row(row_title))
        for panel in panels:
            built.with_panel(panel)
    made = built.build()
    placed = made.panels or []
    for number, one in enumerate(placed, start=1):
        one.id_val = number
    _describe([one for one in placed if isinstance(one, models.Panel)], descriptions["panels"])
    return made


def _describe(panels: Sequence[models.Panel], descriptions: Mapping[str, str]) -> None:
    unmatched = {str(panel.title) for panel in panels} ^ descriptions.keys()
    if unmatched:
        raise ValueError(f"panels and descriptions.toml disagree on: {', '.join(sorted(unmatched))}")
    for panel in panels:
        read = [target.expr for target in panel.targets or [] if isinstance(target, Dataquery)]
        names = ", ".join(f"`{name}`" for name in metrics_read(" ".join(read)))
        panel.description = f"{descriptions[str(panel.title)]}\n\nFrom {names}."


def metrics_read(expr: str) -> list[str]:
    """Names of the metrics in `expr`, sorted, a histogram's and a summary's parts under their common name."""
    names = re.findall(r"\b[a-zA-Z_]\w*(?=\{)", expr)
    return sorted({re.sub(r"_(bucket|sum|count)$", "", name) for name in names})


def _variables() -> list[Builder[models.VariableModel]]:
    boundaries = _query(
        "SLO",
        f"label_values({series('request_duration_seconds_bucket')}, le)",
        "Bucket boundary in seconds that counts as in time; only boundaries are exact.",
    )
    boundaries.sort(models.VariableSort.NUMERICAL_ASC).regex("/^[0-9].*/")
    boundaries.current(models.VariableOption(text=DEFAULT_SLO, value=DEFAULT_SLO))
    source = DatasourceVariable("datasource").label("Data source").type("prometheus")
    chosen = {
        "Job": ("label_values(launchbound_engine_up, job)", "Scrape job of the service."),
        "Instance": (
            'label_values(launchbound_engine_up{job=~"$job"}, instance)',
            "One service each; two instances compare two machines or settings.",
        ),
        "Mode": (
            f"label_values({series('requests_total', HERE)}, mode)",
            "Inference modes; `fallback` is what ran as another mode than the requested one.",
        ),
    }
    return [source, *(_all(_query(label, *of)) for label, of in chosen.items()), boundaries]


def _query(label: str, query: str, description: str) -> QueryVariable:
    """Its name is the label in lower case."""
    name = label.lower()
    variable = QueryVariable(name).label(label).description(description).datasource(DATASOURCE)
    variable.query({"query": query, "refId": f"variable-{name}"}).definition(query)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.NATURAL_ASC)
    return variable


def _all(variable: QueryVariable) -> QueryVariable:
    """Multi-value, with all values selected at first (`.*`, so that later ones are included)."""
    every = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.multi(True).include_all(True).all_value(".*").current(every)


def _annotations() -> list[AnnotationQuery]:
    ready = f"max by (instance, mode) ({series('mode_ready')})"
    was_ready = f"max by (instance, mode) ({series('mode_ready')} offset 1m)"
    became_ready = f"{ready} == 1 unless {was_ready} == 1"
    restarted = f"increase({series('engine_restarts_total', HERE)}[1m]) > 0"
    return [
        _annotation("Mode ready", became_ready, "#2A9D8F", "{{mode}} became ready"),
        _annotation("Engine restart", restarted, "#D1495B", "engine of {{instance}} restarted"),
        _annotation("Sweep", "max by (run) (launchbound_loadtest_run_info)", "#8E6BBF", "sweep {{run}}"),
    ]


def _annotation(name: str, expr: str, colour: str, title: str) -> AnnotationQuery:
    """Grafana joins neighbouring points to a region, so a lasting series shows its start and its end."""
    drawn = AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color(colour).expr(expr)
    return drawn.step("10s").title_format(title).text_format("").tag_keys("instance,mode,run")
