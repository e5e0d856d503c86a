"""Our histogram exposes what the library's does, in either format, with its text cached."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from service.front.metrics.series import CachedHistogram, exemplar, exposed

BOUNDS = (25e-6, 0.5, 1.0, 12.0)
OPEN = "application/openmetrics-text; version=1.0.0"
LABEL_VALUES = ("eager", 'with "quotes"', "back\\slash\nand line")


def counter(registry: CollectorRegistry) -> None:
    Counter("zz", "After it, in the same exposition.", registry=registry).inc()


@pytest.mark.parametrize("accept", ["", OPEN])
@given(
    observed=st.lists(
        st.tuples(st.sampled_from(LABEL_VALUES), st.floats(0, 20) | st.sampled_from(BOUNDS)), max_size=30
    ),
    scrapes=st.sets(st.integers(0, 29)),
)
def test_its_exposition_is_the_librarys_byte_for_byte(
    accept: str, observed: list[tuple[str, float]], scrapes: set[int]
) -> None:
    disable_created_metrics()
    encode, _ = choose_encoder(accept)
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    library = Histogram(
        "x_seconds", 'Help with "quotes".', ["mode"], unit="seconds", registry=theirs, buckets=BOUNDS
    )
    histogram = CachedHistogram("x_seconds", 'Help with "quotes".', ["mode"], "seconds", BOUNDS)
    ours.register(histogram)
    counter(theirs)
    counter(ours)
    for number, (mode, value) in enumerate(observed):
        library.labels(mode).observe(value)
        histogram.labels(mode)(value)
        if number in scrapes:
            # What is kept from one scrape must not outlive the next value.
            exposed([histogram], partial(encode, ours))
    assert exposed([histogram], partial(encode, ours)) == encode(theirs)


def test_a_registry_collects_the_same_samples_without_the_cached_text() -> None:
    registry = CollectorRegistry()
    histogram = CachedHistogram("x_seconds", "Help.", [], "seconds", BOUNDS)
    registry.register(histogram)
    histogram.labels()(0.7)
    assert registry.get_sample_value("x_seconds_bucket", {"le": "0.5"}) == 0
    assert registry.get_sample_value("x_seconds_bucket", {"le": "1.0"}) == 1
    assert registry.get_sample_value("x_seconds_sum") == 0.7


def pointing(*values: float) -> tuple[CachedHistogram, CollectorRegistry]:
    """A histogram that has observed 0.7, with an exemplar `t0`, `t1`, … for each of `values`."""
    registry = CollectorRegistry()
    histogram = CachedHistogram("x_seconds", "Help.", ["mode"], "seconds", BOUNDS)
    registry.register(histogram)
    histogram.labels("eager")(0.7)
    for number, value in enumerate(values):
        histogram.exemplify(exemplar(f"t{number}", value, 1_700_000_000.1234 + number), "eager")
    return histogram, registry


@pytest.mark.parametrize("accept", ["", OPEN])
def test_exemplars_are_written_as_the_library_writes_them_and_only_in_openmetrics(accept: str) -> None:
    encode, _ = choose_encoder(accept)
    histogram, registry = pointing(0.3, 25e-6, 20.0, 0.4)
    page = exposed([histogram], partial(encode, registry), exemplars=accept == OPEN)
    assert page == encode(registry)
    assert (b"trace_id" in page) == (accept == OPEN)


def test_the_newest_exemplar_of_a_bucket_stands_there_and_counts_nothing() -> None:
    encode, _ = choose_encoder(OPEN)
    histogram, registry = pointing(0.3, 0.4, 20.0)
    page = exposed([histogram], partial(encode, registry), exemplars=True).decode()
    (family,) = parse_openmetrics(page)
    found = {sample.labels.get("le"): sample.exemplar for sample in family.samples if sample.exemplar}
    assert {bound: one.labels for bound, one in found.items()} == {
        "0.5": {"trace_id": "t1"},
        "+Inf": {"trace_id": "t2"},
    }
    assert found["0.5"].value == 0.4
    assert float(found["0.5"].timestamp) == 1_700_000_001.123
    assert registry.get_sample_value("x_seconds_count", {"mode": "eager"}) == 1


def test_an_exemplar_that_comes_after_a_scrape_is_in_the_next_one() -> None:
    encode, _ = choose_encoder(OPEN)
    histogram, registry = pointing()
    assert b"trace_id" not in exposed([histogram], partial(encode, registry), exemplars=True)
    histogram.exemplify(exemplar("late", 0.1, 1.0), "eager")
    assert b'# {trace_id="late"} 0.1 1.0\n' in exposed([histogram], partial(encode, registry), exemplars=True)
