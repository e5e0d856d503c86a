"""The panel kinds of the boards, with fixed colours and a text for no data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import barchart, common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.theme import MODE_COLOURS, PLAIN, Scale

DATASOURCE = shapes.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = timeseries.Panel | stat.Panel | barchart.Panel | table.Panel
P = TypeVar("P", timeseries.Panel, stat.Panel, barchart.Panel, table.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and the name of its series (a legend template, or a table's column).

    `exemplars`: lines over time show the requests too that the expression's buckets point to.
    """

    expr: str
    legend: str
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class PanelStyle:
    """Title, unit, size and no-data text of a panel. Its description is in descriptions.toml under `title`.

    `width` and `height` are in Grafana's grid (24 columns). `empty` is shown where no query has data.
    """

    title: str
    unit: str
    scale: Scale = PLAIN
    width: int = 8
    height: int = 8
    empty: str = "no traffic"


def graph(
    style: PanelStyle,
    *queries: Query,
    colours: Mapping[str, str] = MODE_COLOURS,
    stacked: bool = False,
    dashed: str | None = None,
) -> timeseries.Panel:
    """Lines over time; with `stacked`, areas on top of each other; names that end in `dashed` are dashed."""
    panel = _dressed(timeseries.Panel(), style)
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index))
    legend = common.VizLegendOptions().show_legend(True).display_mode(shapes.LegendDisplayMode.LIST)
    panel.legend(legend.placement(shapes.LegendPlacement.BOTTOM))
    tooltip = common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI)
    panel.tooltip(tooltip.sort(shapes.SortOrder.DESCENDING))
    panel.line_width(2).fill_opacity(60 if stacked else 8).show_points(shapes.VisibilityMode.AUTO).min(0)
    if stacked:
        panel.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    if style.scale.steps:
        line = common.GraphThresholdsStyleConfig().mode(shapes.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(line)
    if dashed:
        dash = DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [6, 4]})
        panel.override_by_regexp(f"/ {re.escape(dashed)}$/", [dash])
    return _coloured(panel, colours)


def number(style: PanelStyle, query: Query) -> stat.Panel:
    """One large figure, coloured by its thresholds."""
    panel = _dressed(stat.Panel(), style).with_target(_target(query, 0))
    panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return panel.color_mode(shapes.BigValueColorMode.VALUE).graph_mode(shapes.BigValueGraphMode.AREA)


def bars_by_mode(
    style: PanelStyle, *queries: Query, colours: Mapping[str, str] = MODE_COLOURS
) -> barchart.Panel:
    """One bar per mode, stacked from one query per part; of a single query, in the mode's own colour."""
    panel = _dressed(barchart.Panel(), style)
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index, as_table=True))
    for step in (_step("merge"), _columns(queries), _step("sortBy", sort=[{"field": "mode"}])):
        panel.with_transformation(step)
    panel.x_field("mode").stacking(shapes.StackingMode.NORMAL).orientation(shapes.VizOrientation.HORIZONTAL)
    if len(queries) == 1:
        panel.color_by_field("mode").override_by_name("mode", [_coloured_names()])
    return _coloured(panel.fill_opacity(85).show_value(shapes.VisibilityMode.AUTO), colours)


def bars_by_batch(style: PanelStyle, query: Query) -> barchart.Panel:
    """Groups of bars: one group per batch bucket, one bar per mode."""
    panel = _dressed(barchart.Panel(), style).with_target(_target(query, 0, as_table=True))
    for step in _matrix(row="batch", column="mode"):
        panel.with_transformation(step)
    panel.x_field("batch\\mode").orientation(shapes.VizOrientation.VERTICAL)
    return _coloured(panel.fill_opacity(85).show_value(shapes.VisibilityMode.AUTO), MODE_COLOURS)


def grid(style: PanelStyle, *queries: Query, units: Mapping[str, str] | None = None) -> table.Panel:
    """A table: a row per label set that the queries share, a column per query under its legend.

    A query without a legend gets no column: only its labels are shown.
    """
    panel = _dressed(table.Panel(), style)
    for index, query in enumerate(queries):
        panel.with_target(_target(query, index, as_table=True))
    panel.with_transformation(_step("merge")).with_transformation(_columns(queries))
    for column, unit in (units or {}).items():
        panel.override_by_name(column, [DynamicConfigValue(id_val="unit", value=unit)])
    as_text = DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"})
    return panel.override_by_name("mode", [_coloured_names(), as_text]).show_header(True).filterable(True)


def repeated(panel: P) -> P:
    """The same panel once per chosen mode, two beside each other; inside it `$mode` is that one."""
    return panel.repeat("mode").repeat_direction("h").max_per_row(2)


def _dressed(panel: P, style: PanelStyle) -> P:
    panel.title(style.title).unit(style.unit).datasource(DATASOURCE)
    panel.span(style.width).height(style.height).no_value(style.empty)
    steps = [Threshold(value=None, color=style.scale.base)]
    steps += [Threshold(value=value, color=colour) for value, colour in style.scale.steps]
    return panel.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))


def _target(query: Query, index: int, as_table: bool = False) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    target.ref_id(chr(ord("A") + index)).datasource(DATASOURCE)
    if as_table:
        return target.instant().format(PromQueryFormat.TABLE)
    if query.exemplars:
        target.exemplar(True)
    return target.range().format(PromQueryFormat.TIME_SERIES)


def _coloured(panel: P, colours: Mapping[str, str]) -> P:
    panel.color_scheme(FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    for name, colour in colours.items():
        fixed = DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})
        panel.override_by_regexp(f"/^{re.escape(name)}( |$)/", [fixed])
    return panel


def _coloured_names() -> DynamicConfigValue:
    """A mode's name in the mode's colour."""
    named = {mode: {"color": colour, "text": mode} for mode, colour in MODE_COLOURS.items()}
    return DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": named}])


def _step(kind: str, **options: object) -> DataTransformerConfig:
    return DataTransformerConfig(id_val=kind, options=options)


def _columns(queries: tuple[Query, ...]) -> DataTransformerConfig:
    """Drop the time and call each query's value column by its legend, in the queries' order."""
    letters = [chr(ord("A") + index) for index in range(len(queries))]
    values = [f"Value #{letter}" for letter in letters] if len(queries) > 1 else ["Value"]
    names = {value: query.legend for value, query in zip(values, queries, strict=True)}
    dropped = {"Time": True} | {value: True for value, legend in names.items() if not legend}
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
