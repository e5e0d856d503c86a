"""The choice of a layout for linear weights: from made-up times, and where it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.served import layout_of
from models.transformer import Transformer
from service.step import loaded_model
from service.step.loaded_model import GAIN, ROWS, apply_layout, choose
from tests.support.small_models import CONFIG

Seconds = dict[str, dict[int, float]]


def made() -> Transformer:
    return Transformer(CONFIG, max_batch=2, seed=3).eval()


def times(transposed: tuple[float, float, float]) -> Seconds:
    """Those of `aten` are 1 s at all rows."""
    return {"aten": dict.fromkeys(ROWS, 1.0), "transposed": dict(zip(ROWS, transposed, strict=True))}


def test_the_faster_layout_over_all_rows_is_chosen_and_said_why() -> None:
    chosen = choose(times((0.5, 1.1, 1.0)))
    assert chosen.layout == "transposed"
    assert chosen.reason == "1.22× as fast as aten over rows (2.00× at 1, 0.91× at 4, 1.00× at 16)"
    assert chosen.step_seconds["transposed"][1] == 0.5


@pytest.mark.parametrize("seconds", [(0.98, 0.98, 0.98), (0.5, 2.0, 1.0), (2.0, 2.0, 2.0)])
def test_the_usual_layout_stays_where_another_gains_too_little(seconds: tuple[float, float, float]) -> None:
    chosen = choose(times(seconds))
    assert chosen.layout == "aten"
    assert chosen.reason.startswith(f"no other layout is {GAIN:g}× as fast: transposed")


@pytest.mark.parametrize(
    ("requested", "casts", "layout", "reason"),
    [("transposed", False, "transposed", "requested"), ("auto", True, "aten", "autocast casts the weights")],
)
def test_a_layout_by_name_and_that_of_autocast_are_taken_untimed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, requested: str, casts: bool, layout: str, reason: str
) -> None:
    monkeypatch.setattr(loaded_model, "step_seconds", lambda _: pytest.fail("nothing is to be timed"))
    model = made()
    chosen = apply_layout(model, requested, str(tmp_path), "key", casts)
    assert (chosen.layout, layout_of(model), chosen.step_seconds) == (layout, layout, {})
    assert reason in chosen.reason
    assert not list(tmp_path.iterdir())


def test_an_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="linears 'rows': try one of auto, aten, transposed"):
        apply_layout(made(), "rows", str(tmp_path), "key")


def test_a_choice_is_timed_once_per_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timed = []

    def time_them(model: object) -> Seconds:
        timed.append(model)
        return times((0.5, 0.5, 0.5))

    monkeypatch.setattr(loaded_model, "step_seconds", time_them)
    first, second, other = (made() for _ in range(3))
    chosen = apply_layout(first, "auto", str(tmp_path), "tiny float32")
    assert apply_layout(second, "auto", str(tmp_path), "tiny float32") == chosen
    assert timed == [first]
    apply_layout(other, "auto", str(tmp_path), "small float32")
    assert timed == [first, other]
    assert {layout_of(model) for model in (first, second, other)} == {"transposed"}
