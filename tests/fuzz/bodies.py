"""Strategies for request bodies: valid ones, ones with faults, and any JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.fuzz.service import LARGEST_BATCH, MODES, VOCABULARY

BOUNDED = settings(
    max_examples=60,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

Fields = dict[str, st.SearchStrategy[Any]]

CONTROL_OR_SURROGATE = ("Cc", "Cs")
text = st.text(st.characters(exclude_categories=CONTROL_OR_SURROGATE), min_size=1, max_size=20)
texts = st.lists(text, min_size=1, max_size=LARGEST_BATCH)
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
few = st.integers(1, 3)
seeds = st.integers(0, 2**63 - 1)
temperatures = st.sampled_from([0, 0.0, 1, 100]) | st.floats(0, 100)

OF_ALL: Fields = {
    "temperature": temperatures,
    "seed": st.none() | seeds,
    "stop": st.lists(st.text(min_size=1, max_size=5), max_size=4),
    "ignore_eos": st.booleans(),
}
GENERATION: Fields = {**OF_ALL, "top_k": st.none() | st.integers(1, 1_000_000)}
COMPLETION: Fields = {
    **OF_ALL,
    "top_k": st.none() | st.integers(-1, 1_000_000),
    "top_p": st.none() | st.floats(0, 1),
    "stop": st.none() | st.text(min_size=1, max_size=5) | OF_ALL["stop"],
    "stream": st.booleans(),
    "stream_options": st.none() | st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "echo": st.sampled_from([None, False]),
    "logit_bias": st.sampled_from([None, {}]),
    "user": st.text(max_size=5),
}

generations = st.fixed_dictionaries(
    {"prompts": texts, "max_new_tokens": few},
    optional={**GENERATION, "stream": st.booleans()},
)
comparisons = st.fixed_dictionaries(
    {"prompts": texts, "max_new_tokens": few, "repeats": st.integers(1, 2)},
    optional={**GENERATION, "modes": st.lists(st.sampled_from(MODES), min_size=1, unique=True)},
)
completions = st.fixed_dictionaries(
    {
        "model": st.sampled_from([f"tiny:{mode}" for mode in MODES]),
        "prompt": text | texts | tokens | st.lists(tokens, min_size=1, max_size=LARGEST_BATCH),
        "max_tokens": few,
    },
    optional=COMPLETION,
)
unrunnable_studies = st.fixed_dictionaries(
    {"mode": st.sampled_from(MODES), "batch_size": st.integers(max_value=0) | st.integers(LARGEST_BATCH + 1)},
    optional={"phase": st.sampled_from(["decode", "prefill"])},
)
"""Of a batch size that no bucket holds: one that ran would pause the engine."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["eager", "tiny:eager", "decode", "", "\x00", "\ud800", "é" * 128])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


NAMES = sorted({*COMPLETION, "alone", "best_of", "min_tokens", "modes", "n", "profile", "prompts", "suffix"})


@st.composite
def spoilt(draw: st.DrawFn, bodies: st.SearchStrategy[dict[str, Any]]) -> Any:
    """A valid body with a few fields replaced, added or left out; now and then any JSON instead."""
    if draw(st.integers(0, 9)) == 0:
        return draw(anything)
    body = draw(bodies)
    names = st.sampled_from([*body, *NAMES]) | st.text(max_size=5)
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        if name in body and draw(st.booleans()):
            del body[name]
        else:
            body[name] = draw(anything)
    return body
