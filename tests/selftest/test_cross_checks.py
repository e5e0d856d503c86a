"""The cross-checks of the floor, on made-up samples."""

from __future__ import annotations

import pytest

from models.config import CONFIGS
from service.selftest import sampled_dispatch
from service.selftest.check import run_check
from service.selftest.cross_check_stacks import NAME, STACKS, by_place, judge_stacks
from service.selftest.cross_check_widths import beyond
from service.selftest.places import Place
from service.selftest.width_family import bytes_read, curvature, family, intercept
from service.step.buffers import SHORTEST_REACH
from service.step.native.perf_events import PerfError
from tests.selftest.made_variants import TINY, MadeUpVariants


def test_the_intercept_of_a_line_with_known_noise_is_found() -> None:
    work = [1.0, 4.0, 9.0, 16.0]
    line = [300e-6 + 50e-6 * bytes_read for bytes_read in work]
    assert intercept(work, line) == pytest.approx(300e-6)
    assert curvature(work, line) == pytest.approx(0.0, abs=1e-12)
    bent = [seconds * (1.1 if index == 3 else 1.0) for index, seconds in enumerate(line)]
    assert curvature(work, bent) > 0.01


def test_the_family_of_widths_ends_with_the_model_itself_and_keeps_layers_heads_and_context() -> None:
    config = CONFIGS["tiny"]
    configs = family(config)
    assert configs[-1] == config
    assert [c.width for c in configs] == [48, 96, 144, 192]
    assert {(c.layers, c.heads, c.kv_heads, c.context) for c in configs} == {(6, 6, 2, 512)}
    assert all(c.head_width % 8 == 0 for c in configs)


def test_a_step_reads_its_weights_and_the_part_of_the_cache_that_it_attends_to() -> None:
    variants = MadeUpVariants()
    attended = 6 * 2 * SHORTEST_REACH * 2 * 32 * 4
    assert bytes_read(variants, TINY) == variants.weights_bytes(TINY) + attended  # type: ignore[arg-type]


@pytest.mark.parametrize(("value", "ratio"), [(0.5, 0.5), (1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (3.0, 1.5)])
def test_between_the_witnesses_the_ratio_is_one_and_beyond_that_to_the_nearest(
    value: float, ratio: float
) -> None:
    assert beyond(value, [2.0, 1.0]) == pytest.approx(ratio)


def test_places_are_paired_with_the_floors_of_their_mode_and_the_note_spans_both_witnesses() -> None:
    places = [Place("eager", "decode", bucket) for bucket in (1, 4)]
    seen: dict[Place | str, list[dict[Place, float]]] = {place: [{place: 1.2e-3}] * 8 for place in places}
    seen["eager"] = [dict.fromkeys(places, 0.9e-3)] * 8
    first, second = judge_stacks(by_place(seen))
    assert (first.name, second.name) == tuple(f"{NAME}: eager, decode, batch {n}" for n in (1, 4))
    assert first.value == pytest.approx(0.75)
    assert first.note == "twin 900 µs, stacks 1200 µs; the interval reaches from 900 to 1200 µs"


def test_a_place_without_a_sample_in_dispatch_is_no_lower_estimate() -> None:
    place = Place("eager", "decode", 1)
    (row,) = judge_stacks({(place, "twin"): [1e-3] * 8, (place, "stacks"): [0.0] * 8})
    assert row.verdict == "fail"


def test_where_sampling_is_forbidden_the_row_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(samples_per_second: int) -> None:
        raise PerfError("set kernel.perf_event_paranoid")

    monkeypatch.setattr(sampled_dispatch, "StackSampler", refused)
    (row,) = run_check("stacks", STACKS, MadeUpVariants(), lambda text: None)
    assert (row.verdict, row.note) == ("not measurable here", "set kernel.perf_event_paranoid")
