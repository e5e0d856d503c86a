"""A fleet's plan file: what it makes, and the place and remedy of what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.compare.runs import LETTERS
from loadtests.fleet.plan import HUB, MOST_TASKS, read_fleet_plan
from loadtests.plan.cells import PlanError
from loadtests.plan.plan_file import parse_plan
from loadtests.plan.presets import preset_document
from models.config import CONFIGS
from models.hf.files import PREFIX

INLINE = """\
name = "which"
machines = ["epyc", "h200"]
models = ["tiny"]
dtypes = ["float32", "bfloat16"]
[prices]
epyc = 0.1
[sweep]
name = "own"
modes = ["eager", "inference_mode"]
batch_sizes = [1]
rounds = 8
[[sweep.closed_loop]]
requests = 2
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_there_is_a_task_per_machine_device_precision_and_model(tmp_path: Path) -> None:
    plan = read_fleet_plan(written(tmp_path, INLINE))
    names = [task.name for task in plan.tasks([])]
    assert names == [
        "epyc-cpu-float32-tiny",
        "epyc-cpu-bfloat16-tiny",
        "h200-cpu-float32-tiny",
        "h200-cpu-bfloat16-tiny",
    ]
    assert plan.plan.batch_sizes == [1]
    assert plan.document.prices == {"epyc": 0.1}
    plan = read_fleet_plan(written(tmp_path, 'name = "all"\nmodels = ["hf:org/a model"]\n'))
    assert [task.name for task in plan.tasks(["a", "b"])] == [
        "a-cpu-float32-hf-org-a-model",
        "b-cpu-float32-hf-org-a-model",
    ]


def test_a_sweep_is_a_preset_or_a_file_beside_it_with_its_modes_by_name(tmp_path: Path) -> None:
    preset = read_fleet_plan(written(tmp_path, 'name = "x"\nsweep = "quick"\n'))
    assert parse_plan(preset.sweep).rounds == preset_document("quick").rounds
    assert parse_plan(preset.sweep).modes == preset.plan.modes
    night = 'name = "n"\nbatch_sizes = [2]\nrounds = 3\n[[closed_loop]]\nrequests = 1\n'
    (tmp_path / "night.toml").write_text(night)
    beside = read_fleet_plan(written(tmp_path, 'name = "x"\nsweep = "night.toml"\n'))
    assert (beside.plan.rounds, beside.plan.batch_sizes) == (3, [2])
    with pytest.raises(PlanError, match=r"fleet\.toml, line 2: .* no preset \(quick, .*no file"):
        read_fleet_plan(written(tmp_path, 'name = "x"\nsweep = "nothing.toml"\n'))


@pytest.mark.parametrize(
    ("change", "line", "remedy"),
    [
        (("machines =", "machine ="), 2, "did you mean `machines`"),
        (('"bfloat16"]', '"int4"]'), 4, "write one of float32, bfloat16"),
        (("epyc = 0.1", "epyc = 0"), 5, "change the value"),
        (("epyc = 0.1", "epyc = inf"), 5, "change the value"),
        (('"epyc", "h200"', '"my epyc"'), 2, "change the value"),
        (("rounds = 8", "round = 8"), 11, "did you mean `rounds`"),
        (("requests = 2", "request = 2"), 13, "did you mean `requests`"),
        (('"eager", "inference_mode"', '"inference_mode"'), 9, "add it to the modes"),
        (('name = "own"', 'name = "own"\ndtypes = ["float32"]'), 7, "name them for the fleet"),
        (('["tiny"]', '[\n"tiny",\n"models/mine"]'), 3, "absolute path of a folder that every node has"),
        (('["tiny"]', '["nosuch"]'), 3, "name one of tiny, small, base, hf:HUB-ID"),
        (('["tiny"]', '["hf:./mine"]'), 3, "`hf:./mine` is a relative path"),
    ],
)
def test_what_makes_no_plan_is_named_with_line_and_remedy(
    change: tuple[str, str], line: int, remedy: str, tmp_path: Path
) -> None:
    path = written(tmp_path, INLINE.replace(*change))
    with pytest.raises(PlanError) as error:
        read_fleet_plan(path)
    assert str(error.value).startswith(f"{path}, line {line}: ")
    assert remedy in str(error.value)


@pytest.mark.parametrize(
    ("more", "kinds", "refusal"),
    [
        ("", [], "launchbound-machine=KIND"),
        ("[prices]\nepyc = 1\nh20 = 2", ["epyc", "h200"], "names h20, and .* epyc, h200: name one of these"),
        ('models = ["hf:a/b", "hf:a-b"]', ["m"], "two tasks are called m-cpu-float32-hf-a-b"),
        ("", [f"kind{number}" for number in range(MOST_TASKS + 1)], "make several plans"),
    ],
)
def test_tasks_that_a_fleet_cannot_have_are_refused(
    more: str, kinds: list[str], refusal: str, tmp_path: Path
) -> None:
    plan = read_fleet_plan(written(tmp_path, f'name = "x"\n{more}\n'))
    with pytest.raises(PlanError, match=refusal):
        plan.tasks(kinds)
    assert len(LETTERS) == MOST_TASKS


def test_a_model_is_a_name_an_id_of_the_hub_or_a_folder_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HUB == PREFIX
    names = [*CONFIGS, "hf:org/name", "/data/model", "hf:/data/model", "hf:~/model"]
    text = f'name = "x"\nmodels = {json.dumps(names)}\n'
    plan, here = written(tmp_path, text), tmp_path / "here"
    assert read_fleet_plan(plan).document.models == names
    for folder in (here, tmp_path):
        (folder / "org" / "name").mkdir(parents=True)
        monkeypatch.chdir(here)
        with pytest.raises(PlanError, match="line 2: `hf:org/name` is a relative path"):
            read_fleet_plan(plan)
        (folder / "org" / "name").rmdir()
