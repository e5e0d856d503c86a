"""Settings come from the environment or by keyword, and what cannot work is refused with the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.front.settings import Settings


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = Settings()
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.batch_sizes == [1, 4, 16]
    assert settings.prefill_chunk == 64
    assert settings.api_key is None
    assert settings.modes == ["eager", "no_grad", "inference_mode", "compiled", "reduce-overhead"]


def test_lists_in_the_environment_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHBOUND_MODES", "compiled, eager")
    monkeypatch.setenv("LAUNCHBOUND_BATCH_SIZES", "16,1,4,4")
    core = min(os.sched_getaffinity(0))
    monkeypatch.setenv("LAUNCHBOUND_ENGINE_CPUS", str(core))
    settings = Settings()
    assert (settings.modes, settings.ladder) == (["compiled", "eager"], ["eager", "compiled"])
    assert settings.batch_sizes == [1, 4, 16]
    assert settings.engine_cpus == [core]


def test_a_keyword_wins_over_the_environment_and_an_empty_variable_is_as_good_as_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LAUNCHBOUND_PORT", "9000")
    monkeypatch.setenv("LAUNCHBOUND_THREADS", "")
    assert (Settings().port, Settings(port=9001).port, Settings().threads) == (9000, 9001, None)


@pytest.mark.parametrize("key", ["", " ", "\n", "k3y\n", "\t"])
@pytest.mark.parametrize("variable", ["LAUNCHBOUND_API_KEY", "launchbound_api_key"])
def test_a_key_that_is_empty_or_blank_does_not_open_the_service(
    monkeypatch: pytest.MonkeyPatch, variable: str, key: str
) -> None:
    monkeypatch.setenv(variable, key)
    with pytest.raises(ValidationError, match=r"to serve without one|without spaces and line breaks"):
        Settings()
    assert Settings(api_key="k3y").api_key is not None


def test_an_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHBOUND_URL", "http://127.0.0.1:8000")  # of the load generator
    assert Settings().model == "tiny"
    monkeypatch.setenv("LAUNCHBOUND_BATCHSIZES", "1")
    with pytest.raises(ValidationError, match="LAUNCHBOUND_BATCHSIZES; did you mean LAUNCHBOUND_BATCH_SIZES"):
        Settings()


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"modes": ["fast"]}, "unknown mode fast; try some of eager"),
        ({"modes": []}, "at least 1 item"),
        (
            {"modes": ["eager"], "require_modes": ["compiled"]},
            "compiled is not served; add it to the modes, or require some of eager",
        ),
        ({"batch_sizes": [0, 1]}, "between 1 and 4096"),
        ({"engine_cpus": [9999]}, "this process may use the cores"),
        ({"port": 70000}, "65535"),
        ({"device": "tpu"}, "device 'tpu': try one of auto, cpu, cuda, or a GPU by its number: cuda:1"),
        ({"device": "cuda:-1"}, "device 'cuda:-1': try one of"),
        ({"device": "cuda:01"}, "device 'cuda:01': try one of"),
        ({"request_timeout_seconds": float("nan")}, "finite"),
        ({"api_key": "with space"}, "printable ASCII"),
        ({"api_key": ""}, "at least one character"),
        ({"colour": "red"}, "Extra inputs"),
        (
            {"cache_folder": "~no-such-user/x"},
            "there is no home folder for ~no-such-user/x.*: set LAUNCHBOUND_CACHE_FOLDER to a folder",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(given: dict[str, object], remedy: str) -> None:
    with pytest.raises(ValidationError, match=remedy):
        Settings(**given)


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("LAUNCHBOUND_CACHE_FOLDER", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(
        ValidationError, match=r"no home folder for ~/\.cache/launchbound: set LAUNCHBOUND_CACHE"
    ):
        Settings()
    assert Settings(cache_folder="/tmp/own").cache_folder == Path("/tmp/own")


def test_requests_cannot_be_profiled_by_turns_where_they_are_merged() -> None:
    with pytest.raises(ValidationError, match="set batching to off"):
        Settings(batching="continuous", profile_every=100)
    merging, alone = (Settings(batching=one).engine_settings("") for one in ("continuous", "off"))
    assert (merging.batching, merging.profile_every) == ("continuous", 0)
    assert (alone.batching, alone.profile_every) == ("off", 0)


def test_the_documented_default_of_the_precision_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAUNCHBOUND_DTYPE", "auto")
    assert Settings().dtype is None
