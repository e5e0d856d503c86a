"""The boards as files: current, fully described, and portable between Grafana servers."""

from __future__ import annotations

import json
import re
import socket
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.boards import FOLDER, boards
from dashboards.panels import metrics_read
from dashboards.stack import PrometheusError, configuration, local_prometheus, watch
from dashboards.theme import MODE_COLOURS
from service.front.metrics.catalogue import CATALOGUE, PREFIX
from service.modes import MODES

Json = dict[str, Any]
BOARDS: dict[str, Json] = {name: json.loads(text) for name, text in boards().items()}
# Move at warm-up only, so every later window is empty.
ONCE_PER_LIFE = {"launchbound_compile_seconds_sum{", "launchbound_cudagraph_captures_total{"}
ON_NO_BOARD = {
    "launchbound_build_info",  # to be joined with
    "launchbound_model_info",
    "launchbound_request_device_span_seconds",  # shown by step
}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def panels(board: Json) -> list[Json]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def named_by_mode(panel: Json) -> bool:
    """Whether the panel's series carry a mode's name; a table colours its cells instead."""
    return panel["type"] != "table" and any(
        "{{mode}}" in target["legendFormat"] for target in panel["targets"]
    )


PLACED = [(name, panel) for name, board in BOARDS.items() for panel in panels(board)]
PANELS = [pytest.param(panel, id=f"{name}: {panel['title']}") for name, panel in PLACED]
MODE_PANELS = [param for param in PANELS if named_by_mode(param.values[0])]
EXPRESSIONS = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, panel in PLACED
    for target in panel["targets"]
]


def committed(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.json")}


def test_committed_json_is_what_the_builder_makes() -> None:
    assert committed(FOLDER) == boards(), "run: python -m dashboards.boards"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_describes_its_metrics_and_how_to_read_them_and_has_a_unit_and_a_text_for_no_data(
    panel: Json,
) -> None:
    text, _, metrics = panel["description"].partition("\n\nFrom ")
    assert len(text.split()) >= 5
    for target in panel["targets"]:
        for name in re.findall(r"(\w+)\{", target["expr"]):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in metrics
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["noValue"]
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_is_portable_and_its_panels_are_told_apart(name: str) -> None:
    """Its data source is the chosen one, it names no server, ids and titles are unique, nothing overlaps."""
    board = BOARDS[name]
    with_datasource = [*board["annotations"]["list"], *panels(board)]
    with_datasource += [target for panel in panels(board) for target in panel["targets"]]
    with_datasource += [variable for variable in board["templating"]["list"] if variable["type"] == "query"]
    assert all(thing["datasource"] == DATASOURCE for thing in with_datasource)
    assert not re.search(r"localhost|127\.0\.0\.1|https?://", json.dumps(board))
    for told in ([panel["id"] for panel in board["panels"]], [panel["title"] for panel in panels(board)]):
        assert len(set(told)) == len(told)
    for one, other in combinations((panel["gridPos"] for panel in board["panels"]), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_an_expression_reads_exported_series_of_the_chosen_job_and_rates_counters(expr: str) -> None:
    """Only over Grafana's own windows; estimates are shown as means unless the device measures them."""
    ours = {PREFIX + row.name for row in CATALOGUE}
    clients = {f"launchbound_loadtest_{name}" for name in ("users", "requests_total", "latency_seconds")}
    assert set(metrics_read(expr)) <= ours | clients | {"DCGM_FI_DEV_GPU_UTIL"}
    for labels in re.findall(r"launchbound_(?!loadtest)\w+\{(.*?)\}", expr):
        assert 'job=~"$job", instance=~"$instance"' in labels
    assert set(re.findall(r"\[(.*?)\]", expr)) <= {"$__rate_interval", "$__range"}
    for name in re.finditer(r"\w+_(?:total|sum|bucket)\{", expr):
        if name[0] not in ONCE_PER_LIFE:
            assert re.search(r"(rate|increase)\($", expr[: name.start()])
    if re.search(r"histogram_quantile.*_(dispatch|kernel)_seconds_bucket", expr):
        assert "and on (job, instance" in expr
        assert "device_span_seconds_count" in expr


def test_every_metric_of_the_catalogue_is_on_a_board() -> None:
    shown = {name for param in EXPRESSIONS for name in metrics_read(str(param.values[0]))}
    assert {PREFIX + row.name for row in CATALOGUE} - shown == ON_NO_BOARD


def test_every_mode_of_the_ladder_has_its_own_colour() -> None:
    assert list(MODE_COLOURS) == [*MODES, "fallback"]
    assert len(set(MODE_COLOURS.values())) == len(MODE_COLOURS)


@pytest.mark.parametrize("panel", MODE_PANELS)
def test_series_named_by_mode_have_the_modes_colours(panel: Json) -> None:
    overrides = panel["fieldConfig"]["overrides"]
    fixed = {
        override["matcher"]["options"].strip("/"): override["properties"]
        for override in overrides
        if override["properties"][0]["id"] == "color"
    }
    for mode, colour in MODE_COLOURS.items():
        for name in (mode, f"{mode} p95"):
            matching = [properties for pattern, properties in fixed.items() if re.match(pattern, name)]
            assert matching == [[{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]]


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_narrowed_and_left_for_its_siblings(name: str) -> None:
    board = BOARDS[name]
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names == ["datasource", "job", "instance", "mode", "slo"]
    (link,) = board["links"]
    assert link["tags"] == board["tags"]
    assert link["includeVars"]
    assert link["keepTime"]


# ---------------------------------------------------------------- Prometheus without Docker


def test_only_jobs_with_addresses_are_scraped_at_the_given_interval_by_rules_found_from_any_folder() -> None:
    content = yaml.safe_load(configuration({"launchbound": ["127.0.0.1:1", "127.0.0.1:2"]}, "2s"))
    (job,) = content["scrape_configs"]
    assert job == {"job_name": "launchbound", "static_configs": [{"targets": ["127.0.0.1:1", "127.0.0.1:2"]}]}
    assert content["global"]["scrape_interval"] == "2s"
    assert content["rule_files"]
    assert all(Path(rules).is_absolute() and Path(rules).exists() for rules in content["rule_files"])


def test_a_binary_that_does_not_start_is_reported_with_its_log(tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.write_text(f"#!{sys.executable}\nraise SystemExit('no room on the disk')\n")
    refusing.chmod(0o755)
    with (
        pytest.raises(PrometheusError, match="no room on the disk"),
        local_prometheus(str(refusing), tmp_path, {}),
    ):
        pass


def test_without_a_binary_the_stack_serves_until_stopped_and_explains_how_to_install_it(
    tmp_path: Path,
) -> None:
    lines: list[str] = []

    def listen(line: str) -> None:
        lines.append(line)
        if "Ctrl-C" in line:
            raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as service:
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
        assert watch(url, None, tmp_path, 0, 5, listen) == 0
    assert any(url in line for line in lines)
    assert any("apt-get install prometheus" in line for line in lines)


def test_the_stack_ends_when_the_service_has_ended_and_names_its_log(tmp_path: Path) -> None:
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as service:
        url = f"http://127.0.0.1:{service.getsockname()[1]}"
    assert watch(url, None, tmp_path, 0, 5, lines.append) == 1
    assert lines[-1] == f"the service has ended; its log is in {tmp_path}"
