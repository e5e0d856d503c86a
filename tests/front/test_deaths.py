"""When the next engine starts, and from when on engines that keep ending are called a fault."""

from __future__ import annotations

from service.front.supervisor import (
    DEATHS_UNTIL_UNHEALTHY,
    SLOWEST_RETRY_SECONDS,
    STAYED_SECONDS,
    WINDOW_SECONDS,
    Deaths,
)


class Clock:
    """Says what it is set to."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_first_engine_that_ends_after_it_was_warm_is_replaced_at_once() -> None:
    assert Deaths(0.5, Clock()).add(warm=True) == 0.0


def test_each_further_death_waits_twice_as_long_up_to_a_limit() -> None:
    deaths = Deaths(0.5, Clock())
    waits = [deaths.add(warm=False) for _ in range(12)]
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == SLOWEST_RETRY_SECONDS


def test_engines_that_never_become_warm_are_unhealthy_however_long_each_takes_to_end() -> None:
    clock = Clock()
    deaths = Deaths(0.5, clock)
    for _ in range(DEATHS_UNTIL_UNHEALTHY):
        assert deaths.unhealthy(None) is None
        clock.seconds += WINDOW_SECONDS + 1
        deaths.add(warm=False)
    assert "in a row before it was warm" in (deaths.unhealthy(None) or "")
    assert deaths.unhealthy(warm_since=clock.seconds) is None


def test_engines_that_end_again_and_again_after_they_were_warm_are_unhealthy_until_they_stay() -> None:
    clock = Clock()
    deaths = Deaths(0.5, clock)
    for _ in range(DEATHS_UNTIL_UNHEALTHY):
        clock.seconds += 70.0
        deaths.add(warm=True)
    assert "within 15 minutes" in (deaths.unhealthy(None) or "")
    warm_since = clock.seconds
    clock.seconds += STAYED_SECONDS - 1
    assert "within 15 minutes" in (deaths.unhealthy(warm_since) or "")
    clock.seconds += 1
    assert deaths.unhealthy(warm_since) is None


def test_an_engine_that_stayed_and_ends_counts_with_those_before_it_until_they_are_long_ago() -> None:
    clock = Clock()
    deaths = Deaths(0.5, clock)
    for _ in range(DEATHS_UNTIL_UNHEALTHY):
        deaths.add(warm=True)
    clock.seconds += STAYED_SECONDS
    assert deaths.add(warm=True) > 0.0
    assert "within 15 minutes" in (deaths.unhealthy(None) or "")
    clock.seconds += WINDOW_SECONDS + 1
    assert deaths.unhealthy(None) is None
    assert deaths.add(warm=True) == 0.0


def test_an_engine_that_becomes_warm_ends_the_row_of_those_that_did_not() -> None:
    clock = Clock()
    deaths = Deaths(0.5, clock)
    for _ in range(DEATHS_UNTIL_UNHEALTHY):
        clock.seconds += WINDOW_SECONDS + 1
        deaths.add(warm=False)
    clock.seconds += WINDOW_SECONDS + 1
    assert deaths.add(warm=True) == 0.0
    assert deaths.unhealthy(None) is None
