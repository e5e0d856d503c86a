"""Our histogram exposes what the library's does, in either format, with its text cached."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from service.front.metrics.histogram import CachedHistogram, exposed

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
