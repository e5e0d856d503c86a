"""`advice.json` of a report: what a service reads that is started with it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from loadtests.run.run_file import read_run
from service.front.settings import read_advice
from tests.support.made_plans import make_plan, make_report
from tests.support.made_results import make_results

PLAN = make_plan("quick", 1, ["eager", "inference_mode", "compiled"], [1, 4])


def test_a_service_reads_what_the_report_has_chosen(tmp_path: Path) -> None:
    made = make_results(tmp_path, plan=PLAN)
    make_report(made)
    found = read_advice(made)
    assert [(one.batch_size, one.mode) for one in found.batches] == [(1, "compiled"), (4, "compiled")]
    assert found.batches[0].reason.endswith("× the speed of inference_mode")
    assert (found.model, found.model_hash, found.device_name) == ("tiny", "0123456789ab", "a CPU")
    document = json.loads((made / "advice.json").read_text())
    speedup = document["batches"][0]["speedup"]
    assert (speedup["vs"], document["commit"]) == ("inference_mode", read_run(made).environment["commit"])
    assert document["batches"][0]["state"] == "faster"
    assert document["left_out"] == ["no_grad", "reduce-overhead", "max-autotune", "aot-inductor"]
    assert speedup["low"] < speedup["ratio"] < speedup["high"]


def test_an_invalid_sweep_says_so_and_is_refused(tmp_path: Path) -> None:
    make_report(make_results(tmp_path, plan=PLAN, fail=1))
    with pytest.raises(ValueError, match="is not valid"):
        read_advice(tmp_path)


def test_a_batch_size_that_was_not_decided_is_absent(tmp_path: Path) -> None:
    few = msgspec.structs.replace(PLAN, rounds=5, rounds_most=None)
    make_report(make_results(tmp_path, plan=few))
    assert json.loads((tmp_path / "advice.json").read_text())["batches"] == []
