"""Our histogram exposes what the library's does, in either format, with its text cached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client import Histogram as LibraryHistogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from service.front.metrics.series import Histogram

BOUNDS = (25e-6, 0.5, 1.0, 12.0)
LABEL_VALUES = ("eager", 'with "quotes"', "back\\slash\nand line")


def histogram() -> Histogram:
    return Histogram("x_seconds", "Help.", ["mode"], "seconds", BOUNDS)


@pytest.mark.parametrize("open_metrics", [False, True])
@given(
    observed=st.lists(
        st.tuples(st.sampled_from(LABEL_VALUES), st.floats(0, 20) | st.sampled_from(BOUNDS)), max_size=30
    ),
    scrapes=st.sets(st.integers(0, 29)),
)
def test_its_exposition_is_the_librarys_byte_for_byte(
    open_metrics: bool, observed: list[tuple[str, float]], scrapes: set[int]
) -> None:
    disable_created_metrics()
    registry, ours = CollectorRegistry(), histogram()
    theirs = LibraryHistogram(
        "x_seconds", "Help.", ["mode"], unit="seconds", registry=registry, buckets=BOUNDS
    )
    for number, (mode, value) in enumerate(observed):
        theirs.labels(mode).observe(value)
        ours.labels(mode)(value)
        if number in scrapes:
            ours.exposition(open_metrics)  # its cached text must not outlive the next value
    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0" if open_metrics else "")
    assert ours.exposition(open_metrics) == encode(registry).decode().removesuffix("# EOF\n")


def test_the_newest_exemplar_of_a_bucket_is_in_openmetrics_alone_and_counts_nothing() -> None:
    ours = histogram()
    ours.labels("eager")(0.7)
    assert "trace_id" not in ours.exposition(open_metrics=True)
    for number, value in enumerate((0.3, 0.4, 20.0)):
        ours.exemplify(f"t{number}", value, 1_700_000_000.1234 + number, "eager")
    assert "trace_id" not in ours.exposition(open_metrics=False)
    (family,) = parse_openmetrics(ours.exposition(open_metrics=True) + "# EOF\n")
    found = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    assert {bound: one.labels for bound, one in found.items()} == {
        "0.5": {"trace_id": "t1"},
        "+Inf": {"trace_id": "t2"},
    }
    assert (found["0.5"].value, float(found["0.5"].timestamp)) == (0.4, 1_700_000_001.123)
    assert [sample.value for sample in family.samples if sample.name == "x_seconds_count"] == [1]
