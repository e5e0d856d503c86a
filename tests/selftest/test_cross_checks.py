"""The cross-checks of the floor, on made-up samples."""

from __future__ import annotations

import pytest

from models.config import CONFIGS
from service.measure.native_stacks import Recording, Sample
from service.selftest.cross_check_perf import Shares, Window, kernel_shares, shares_of
from service.selftest.cross_check_widths import curvature, family, intercept


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


def test_samples_are_counted_in_the_window_in_which_they_were_taken() -> None:
    windows = [Window(100, 200, 1e-3, 6e-4), Window(300, 400, 1e-3, 6e-4)]
    windows.append(Window(500, 600, 1e-3, 6e-4))
    seen = Recording()
    taken = [(90, "kernel"), (110, "kernel"), (190, "host"), (250, "kernel"), (350, "kernel")]
    seen.samples = [Sample(instant, side) for instant, side in taken]
    assert kernel_shares(windows, seen) == [0.5, 1.0, None]
    assert windows[0].twin_share == pytest.approx(0.4)
    assert shares_of(windows, seen) == [
        Shares(windows[0].twin_share, 0.5),
        Shares(windows[1].twin_share, 1.0),
    ]
