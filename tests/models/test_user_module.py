"""A user's module is loaded by its factory's name, and whatever is wrong with it is one line and a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models.naming import names_module, split_name
from models.user_code import OURS
from models.workload import ModuleError, UserModule, explain, load_module

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]

GOOD = """
import torch
from torch import nn

def inputs(batch, seed):
    return (torch.randn(batch, 4),)

def build():
    return nn.Linear(4, 2).eval(), inputs
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes files into the current folder, which a user's code is imported from and forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    before = set(sys.modules)

    def written(path: str, content: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    yield written
    for name in set(sys.modules) - before:
        parts = vars(sys.modules[name])
        if str(tmp_path) in f"{parts.get('__file__')} {parts.get('__path__')}":
            del sys.modules[name]


def load(name: str, dtype: torch.dtype = torch.float32) -> UserModule:
    return load_module(name, CPU, dtype)


def refused(name: str, *, batch: int | None = None) -> str:
    """The message with which loading `name`, or its inputs for `batch`, is refused; always one line."""
    loaded = load(name) if batch is not None else None
    with pytest.raises(ModuleError) as raised:
        _ = load(name) if loaded is None else loaded.inputs(batch or 0, 0)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("package.ranker:build", True),
        ("ranker:Ranker.build", True),
        ("path/to/file.py:build", True),
        ("file.py", True),
        ("package.ranker:", True),
        ("hf:bert-folder", False),
        ("hf:a/b.py", False),
        ("tiny", False),
        ("runs/model", False),
    ],
)
def test_a_name_says_whether_it_is_a_users_module(name: str, named: bool) -> None:
    assert names_module(name) is named


def test_a_folder_with_a_colon_in_its_name_stays_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run:one").mkdir()
    assert not names_module("run:one")
    assert split_name("a.py:build") == ("a.py", "build")
    assert split_name("a.py") == ("a.py", "")


@pytest.mark.parametrize("name", ["ranker:build", "ranker.py:build", "./ranker.py:build"])
def test_a_module_is_loaded_in_the_dtype_with_inputs_by_seed(write: Write, name: str) -> None:
    write("ranker.py", GOOD)
    loaded = load(name, torch.bfloat16)
    (x,), kwargs = loaded.inputs(3, 1)
    assert (x.shape, x.dtype, kwargs) == ((3, 4), torch.bfloat16, {})
    assert loaded.module.weight.dtype is torch.bfloat16
    assert loaded.module.weight.requires_grad
    assert loaded.module(x).shape == (3, 2)
    assert torch.equal(x, loaded.inputs(3, 1).args[0])
    assert not torch.equal(x, loaded.inputs(3, 2).args[0])
    assert (loaded.name, loaded.tolerance, loaded.batch_dimension) == (name, None, 0)


def test_the_weights_of_two_loads_are_equal_and_the_hash_is_of_code_and_weights(write: Write) -> None:
    write("one.py", GOOD)
    write("two.py", GOOD + "\n# another line\n")
    write("three.py", GOOD.replace("nn.Linear(4, 2)", "nn.Linear(4, 3)"))
    first, again = load("one.py:build"), load("one.py:build")
    assert torch.equal(first.module.weight, again.module.weight)
    assert first.content_hash == again.content_hash
    assert len({load(f"{name}.py:build").content_hash for name in ("one", "two", "three")}) == 3
    assert len(bytes.fromhex(first.content_hash)) == 6


def test_the_hash_is_also_of_the_code_of_an_installed_package(write: Write, tmp_path: Path) -> None:
    write("away/site-packages/pack/__init__.py", "")
    write("away/site-packages/pack/net.py", "from pack.other import build")
    write("away/site-packages/pack/other.py", GOOD)
    sys.path.append(str(tmp_path / "away/site-packages"))
    found = [load("pack.net:build").content_hash]
    write("away/site-packages/pack/other.py", GOOD + "# another line")
    assert load("pack.net:build").content_hash not in found


def test_weights_that_differ_have_another_hash(write: Write) -> None:
    seeded = "def build():\n    import os\n    torch.manual_seed(len(os.listdir()))"
    write("net.py", GOOD.replace("def build():", seeded))
    first = load("net.py:build").content_hash
    write("one-file-more", "")
    assert load("net.py:build").content_hash != first


def test_a_dict_of_inputs_is_keywords_and_integers_keep_their_dtype(write: Write) -> None:
    made = "{'x': torch.randn(batch, 4, requires_grad=True), 'parts': [torch.arange(batch)], 'scale': 2.0}"
    write("net.py", GOOD.replace("(torch.randn(batch, 4),)", made))
    args, kwargs = load("net.py:build", torch.bfloat16).inputs(2, 0)
    assert (args, kwargs["scale"]) == ((), 2.0)
    assert (kwargs["x"].dtype, kwargs["parts"][0].dtype) == (torch.bfloat16, torch.int64)
    assert not kwargs["x"].requires_grad


def test_inputs_that_the_user_keeps_are_copied(write: Write) -> None:
    write(
        "net.py", GOOD.replace("return (torch.randn(batch, 4),)", "return kept") + "\nkept = torch.ones(2, 4)"
    )
    loaded = load("net.py:build")
    loaded.inputs(2, 0).args[0].zero_()
    assert bool(loaded.inputs(2, 0).args[0].all())


def test_an_object_says_what_a_tuple_cannot(write: Write) -> None:
    said = "N(model=nn.Linear(4, 2).eval(), inputs=inputs, name='r', batch_dimension=1, tolerance=0.01)"
    content = GOOD.replace("nn.Linear(4, 2).eval(), inputs", said)
    content = content.replace("randn(batch, 4)", "randn(7, batch, 4)")
    write("net.py", "from types import SimpleNamespace as N\n" + content)
    loaded = load("net.py:build")
    assert (loaded.name, loaded.batch_dimension, loaded.tolerance) == ("r", 1, 0.01)
    assert loaded.inputs(5, 0).args[0].shape == (7, 5, 4)


def test_inputs_get_the_size_that_is_asked_for_as_it_was_given(write: Write) -> None:
    said = "N(model=nn.Linear(4, 2).eval(), inputs=inputs, sizes=(3, '5x'))"
    content = GOOD.replace("nn.Linear(4, 2).eval(), inputs", said)
    content = content.replace("inputs(batch, seed)", "inputs(batch, seed, size)")
    content = content.replace("randn(batch, 4)", "randn(batch, 3 if size == 3 else len(size), 4)")
    write("net.py", "from types import SimpleNamespace as N\n" + content)
    loaded = load("net.py:build")
    assert loaded.sizes == ("3", "5x")
    shapes = [list(loaded.inputs(2, 0, size).args[0].shape) for size in (None, "3", "5x")]
    assert shapes == [[2, 3, 4], [2, 3, 4], [2, 2, 4]]


JOINED = """from types import SimpleNamespace as N
""" + GOOD.replace(
    "return nn.Linear(4, 2).eval(), inputs",
    "return N(model=nn.Linear(4, 2).eval(), inputs=inputs, batch_dimension=None)",
)


def test_a_batch_need_be_no_dimension(write: Write) -> None:
    write("net.py", JOINED.replace("randn(batch, 4)", "randn(50 * batch, 4)"))
    loaded = load("net.py:build")
    assert loaded.batch_dimension is None
    assert [loaded.inputs(batch, 0).args[0].shape[0] for batch in (1, 2, 2)] == [50, 100, 100]
    assert torch.equal(loaded.inputs(2, 3).args[0], loaded.inputs(2, 3).args[0])


def test_a_batch_that_is_no_dimension_has_to_be_more_than_one_sample(write: Write) -> None:
    write("net.py", JOINED.replace("randn(batch, 4)", "randn(50, 4)"))
    said = "inputs(8, 0) of net.py:build gives no more numbers than inputs(1, 0)"
    assert said in refused("net.py:build", batch=8)


SHARED = """from types import SimpleNamespace as N
""" + GOOD.replace("(torch.randn(batch, 4),)", "torch.randn(3, 4), torch.randn(4, batch), torch.ones(())")


def test_a_batch_may_be_another_dimension_or_none_of_some_tensors(write: Write) -> None:
    write("net.py", SHARED)
    said = refused("net.py:build", batch=8)
    assert "a first tensor of shape [3, 4], whose dimension 0 is not the batch of 8: make it so, or" in said
    # As the message says.
    factory = "return N(model=nn.Linear(4, 2).eval(), inputs=inputs, batch_dimension=None)"
    write("other.py", SHARED.replace("return nn.Linear(4, 2).eval(), inputs", factory))
    assert "batch_dimension=N), N being" in said
    shapes = [list(one.shape) for one in load("other.py:build").inputs(8, 0).args]
    assert shapes == [[3, 4], [4, 8], []]
    # Of all but the first it need not be said.
    write("third.py", SHARED.replace("torch.randn(3, 4)", "torch.randn(batch, 4)"))
    assert load("third.py:build").inputs(8, 0).args[1].shape == (4, 8)


def test_complex_parameters_keep_their_imaginary_part(write: Write) -> None:
    factory = """model = nn.Linear(4, 2).eval()
    model.w = nn.Parameter(torch.tensor([1 + 2j]))
    return model, inputs"""
    write("net.py", GOOD.replace("return nn.Linear(4, 2).eval(), inputs", factory))
    module = load("net.py:build", torch.bfloat16).module
    assert module.w.imag.item() == 2.0
    assert module.weight.dtype is torch.bfloat16


def test_threads_and_grad_mode_stay_the_services(write: Write) -> None:
    write(
        "net.py",
        GOOD + f"\ntorch.set_grad_enabled(False)\ntorch.set_num_threads({torch.get_num_threads() + 1})",
    )
    threads = torch.get_num_threads()
    load("net.py:build")
    assert (torch.get_num_threads(), torch.is_grad_enabled()) == (threads, True)


def test_a_file_in_a_package_may_import_relatively(write: Write) -> None:
    write("pack/__init__.py", "")
    write("pack/sizes.py", "WIDTH = 4")
    write("pack/net.py", "from .sizes import WIDTH\n" + GOOD.replace("nn.Linear(4,", "nn.Linear(WIDTH,"))
    assert load("pack/net.py:build").module.in_features == 4
    assert load("pack.net:build").module.in_features == 4


# Names that launchbound's own code has too


@pytest.mark.parametrize("top", ["models", "service"])
@pytest.mark.parametrize("form", ["{}.ranker:build", "{}/ranker.py:build", "run.py:build"])
def test_a_package_may_have_a_name_of_ours(write: Write, top: str, form: str) -> None:
    write(f"{top}/__init__.py", "")
    write(f"{top}/config.py", "WIDTH = 4")  # ours has one too
    write(f"{top}/deep/sizes.py", f"import {top}.config\nHEIGHT = {top}.config.WIDTH // 2")
    imports = f"from {top}.config import WIDTH\nfrom {top}.deep import sizes\nimport {top}.config as c\n"
    code = imports + GOOD.replace("nn.Linear(4, 2)", "nn.Linear(WIDTH + c.WIDTH - 4, sizes.HEIGHT)")
    write(f"{top}/ranker.py", code)
    write("run.py", f"from {top}.ranker import build")
    loaded = load(form.format(top))
    assert (loaded.module.in_features, loaded.module.out_features) == (4, 2)
    import models.config
    import service

    assert Path(models.config.__file__).is_relative_to(ROOT)
    assert Path(next(iter(service.__path__))).is_relative_to(ROOT)


@pytest.mark.parametrize(
    "name", ["models.py:build", "models:build", "statistics:build", "my-net.v2.py:build"]
)
def test_a_file_may_have_any_name(write: Write, name: str) -> None:
    write(name.partition(":")[0].removesuffix(".py") + ".py", GOOD)
    assert load(name).module.in_features == 4


def test_a_folder_of_weights_called_models_changes_nothing(write: Write) -> None:
    write("models/weights.txt", "1 2 3")
    write("net.py", GOOD + "\nimport pathlib\npathlib.Path('models/weights.txt').read_text()")
    assert load("net.py:build").module.in_features == 4


def test_the_command_line_starts_beside_packages_of_our_names(write: Write) -> None:
    for top in ("models", "service"):
        write(f"{top}/__init__.py", "raise SystemExit('the wrong package')")
    child = "import service.records, models.naming; print(service.records.METHOD)"
    parent = f"""import launchbound, subprocess, sys
with launchbound.any_system():
    subprocess.run([sys.executable, "-c", {child!r}], check=True)"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", parent],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip().isdigit(), done.stderr


# What is refused, when it is loaded


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:build", "no module 'nowhere' in "),
        ("models.nowhere:build", "launchbound's own package is called 'models' as well"),
        ("net.nowhere:build", "no module 'net.nowhere'"),
        ("a-b:build", "names no module"),
        ("nowhere.py:build", "no file nowhere.py"),
        ("./net:build", "did you mean"),
        ("net.py", "names no factory"),
        ("net:", "names no factory"),
        (":build", "names no factory"),
        ("net:make", "there is no 'make' in it (it has inputs, build): name a function"),
        ("net:number", "is no function but an object of type int"),
    ],
)
def test_a_name_of_nothing_is_refused(write: Write, name: str, said: str) -> None:
    write("net.py", GOOD + "\nnumber = 3")
    assert said in refused(name)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def build(", "SyntaxError: '(' was never closed (net.py:1)"),
        ("import nowhere_at_all", "install that into the environment"),
        (
            "import importlib\nimportlib.import_module('models.yolo')",
            "own package has that name: `import` in",
        ),
        ("import pickle\npickle.loads(b'cservice\\nNet\\n.')", "load a state_dict in place of a"),
        ("input('which model? ')", "(net.py:1): it reads standard input, which is empty here"),
        ("import sys\nsys.exit(3)", "(net.py:2): it ends the process: put its command line under"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args()\n1 / 0",
            "ZeroDivisionError: division by zero",
        ),
        (
            "import multiprocessing as m\nm.Process(target=print).start()",
            "starts a process while it is imported",
        ),
        (
            "import multiprocessing as m\nm.get_context('spawn').Pool(1)",
            "starts a process while it is imported",
        ),
    ],
)
def test_code_that_cannot_be_imported_is_refused(write: Write, code: str, said: str) -> None:
    write("net.py", code)
    assert said in refused("net.py:build")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("None", "returned an object of type NoneType: return model, inputs"),
        ("nn.Linear(4, 2).eval()", "returned an object of type Linear: return model, inputs"),
        ("nn.Linear(4, 2).eval(), inputs, 3", "returned a tuple of 3"),
        ("print, inputs", "in place of a torch.nn.Module"),
        ("nn.Linear(4, 2).eval(), torch.ones(3)", "in place of a function inputs"),
        ("nn.Linear(4, 2).eval(), lambda batch: 0", "called as inputs(batch, seed)"),
        ("nn.Linear(4, 2), inputs", "training mode (the module itself)"),
        (
            "nn.Sequential(nn.Linear(4, 2).eval(), nn.Dropout()).train(False).append(nn.Dropout()), inputs",
            "(2)",
        ),
        ("torch.compile(nn.Linear(4, 2).eval()), inputs", "returned a compiled module"),
        ("nn.LazyLinear(2).eval(), inputs", "has no size yet"),
        ("nn.Linear(4, 2, device='meta').eval(), inputs", "has no values"),
        ("N(model=1, inputs=inputs, batch_dimension='x')", "batch_dimension is 'x'"),
        ("N(model=1, inputs=inputs, tolerance=2.0)", "tolerance is 2.0"),
        ("N(model=1, inputs=inputs, sizes=128)", "sizes is 128: give a tuple of up to 8"),
        ("N(model=1, inputs=inputs, sizes=(1, 1.5))", "1.5 is in sizes: give a tuple of up to 8"),
        ("N(model=1, inputs=inputs, sizes=(3, '3'))", "sizes is (3, '3'): give a tuple"),
        ("N(model=1, inputs=inputs, sizes=range(9))", "sizes is range(0, 9): give a tuple"),
        (
            "N(model=1, inputs=inputs, sizes=[*range(9)])",
            "sizes is [0, 1, 2, 3, 4, 5, 6, 7, 8]: ",
        ),
        (
            "N(model=nn.Linear(4, 2).eval(), inputs=inputs, sizes=(1, 2))",
            "called as inputs(batch, seed, size), and it has (batch, seed; ",
        ),
    ],
)
def test_a_factory_that_returns_something_else_is_refused(write: Write, returned: str, said: str) -> None:
    content = GOOD.replace("return nn.Linear(4, 2).eval(), inputs", f"return {returned}")
    write("net.py", "from types import SimpleNamespace as N\n" + content)
    assert said in refused("net.py:build")


def test_a_factory_with_arguments_is_refused(write: Write) -> None:
    write("net.py", GOOD.replace("build()", "build(width)"))
    assert "is called without arguments, and it has (width;" in refused("net.py:build")


def test_a_module_made_under_inference_mode_is_refused(write: Write) -> None:
    write("net.py", GOOD.replace("def build", "@torch.inference_mode()\ndef build"))
    assert "made under inference_mode" in refused("net.py:build")


def test_a_process_that_the_factory_leaves_running_is_refused(write: Write) -> None:
    begun = """def build():
    global p
    import multiprocessing, time
    p = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,), name='loader')
    p.start()"""
    write("net.py", GOOD.replace("def build():", begun))
    try:
        assert "leaves loader running" in refused("net.py:build")
    finally:
        process = sys.modules["launchbound_user_net"].p
        process.kill()
        process.join()


def test_a_factory_that_raises_shows_its_traceback_and_not_ours(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("net.py", GOOD.replace("return nn.Linear", "return torch.ones(2) @ torch.ones(3), nn.Linear"))
    message = refused("net.py:build")
    assert message.startswith("net.py:build() failed: RuntimeError: inconsistent tensor size")
    assert message.endswith("(net.py:9): correct that")
    shown = capsys.readouterr().err
    assert 'net.py", line 9, in build' in shown
    assert "RuntimeError: inconsistent tensor size" in shown
    assert not any(ours in shown for ours in ("workload.py", "user_code.py", "importlib"))


def test_what_a_users_code_prints_does_not_go_to_standard_output(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write("net.py", GOOD + "\nprint('hello')")
    load("net.py:build")
    assert capsys.readouterr() == ("", "hello\n")


# What is refused, when inputs are made


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("1 / 0", "inputs(8, 0) of net.py:build failed: ZeroDivisionError: division by zero (net.py:6)"),
        ("3", "gives an object of type int: return a tuple"),
        ("(3, 'x')", "gives no tensor but int, str"),
        ("{1: torch.ones(batch, 4)}", "gives an object of type dict"),
        ("torch.ones(4, 4)", "first tensor of shape [4, 4], whose dimension 0 is not the batch of 8"),
        ("torch.ones(())", "first tensor of shape []"),
        ("torch.ones(4, batch, 4)", "batch_dimension"),
        ("torch.ones(batch, device='cuda')", "it needs a CUDA device"),
        ("torch.ones(batch, 1 << 50)", "it needs more memory than there is"),
    ],
)
def test_inputs_that_cannot_be_used_are_refused(write: Write, made: str, said: str) -> None:
    write("net.py", GOOD.replace("(torch.randn(batch, 4),)", made))
    if "cuda" in made and torch.cuda.is_available():
        pytest.skip("this machine has the device that is asked for")
    assert said in refused("net.py:build", batch=8)


def test_a_module_without_floating_point_anywhere_is_refused(write: Write) -> None:
    content = GOOD.replace("nn.Linear(4, 2)", "nn.Identity()")
    write("net.py", content.replace("torch.randn(batch, 4)", "torch.arange(batch)"))
    assert "has a floating point tensor" in refused("net.py:build", batch=8)


# What a call raises


def _only_on_cuda(x: Tensor) -> Tensor:
    library = torch.library.Library("launchbound_test", "FRAGMENT")
    library.define("only_on_cuda(Tensor x) -> Tensor")
    library.impl("only_on_cuda", lambda x: x, "CUDA")
    found: Tensor = torch.ops.launchbound_test.only_on_cuda(x)
    return found


def test_an_operator_of_cuda_alone_is_explained() -> None:
    with pytest.raises(NotImplementedError) as raised:
        _only_on_cuda(torch.ones(2))
    said = explain(raised.value)
    assert "\n" not in said
    assert "test_user_module.py:" in said
    assert "it needs a CUDA device" in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "more memory than there is",
        ),
        (MemoryError(), "more memory than there is"),
        (AssertionError("Torch not compiled with CUDA enabled"), "it needs a CUDA device"),
        (RuntimeError("Attempting to deserialize object on a CUDA device but"), "it needs a CUDA device"),
        (RuntimeError("Found no NVIDIA driver on your system."), "it needs a CUDA device"),
        (RuntimeError("Expected all tensors to be on the same device, but"), "make it a buffer"),
        (ValueError("two\nlines"), "ValueError: two lines: correct that"),
    ],
)
def test_an_error_of_a_call_is_explained_in_one_line(error: BaseException, said: str) -> None:
    assert said in explain(error)
    assert "\n" not in explain(error)


def test_the_error_behind_that_of_a_lazy_import_is_named_with_its_remedy() -> None:
    error = ImportError("Could not import module 'T5Model'. Set the logging verbosity to DEBUG.")
    error.__cause__ = RuntimeError("failed")
    error.__cause__.__cause__ = ModuleNotFoundError("No module named 'PIL'")
    said = explain(error)
    assert ", caused by ModuleNotFoundError: No module named 'PIL': install that into" in said
    assert "failed" not in said


def test_a_cause_that_the_error_quotes_or_is_adds_nothing() -> None:
    error = ValueError("of the reader: no such column")
    for cause in (ValueError("no such column"), error):
        error.__cause__ = cause
        assert explain(error) == "ValueError: of the reader: no such column: correct that"


def test_what_dynamo_says_is_told_without_its_hints() -> None:
    arguments = ", ".join(["FakeTensor(..., size=(4, 7))"] * 8)
    error = RuntimeError(
        f"cannot call\n  Explanation: ({arguments}): got uint8\n  Hint: double check\n\nfrom"
    )
    said = explain(error, otherwise="leave the mode out")
    assert said.startswith("RuntimeError: cannot call Explanation: (FakeTensor(")
    assert said.endswith("): got uint8: leave the mode out")


LIBRARY = """
import torch
from torch import nn

class Layer(nn.Module):
    def forward(self, x):
        return x @ torch.ones(9, 9) if torch.compiler.is_compiling() else x
"""
CALLER = """
import torch
from library.layers import Layer

class Net(Layer):
    def forward(self, x):
        return super().forward(x)

def build():
    return Net().eval(), lambda batch, seed: torch.randn(batch, 4)
"""


@pytest.mark.parametrize(
    "compiled",
    [
        lambda module, x: torch.compile(module, backend="eager", fullgraph=True)(x),
        lambda module, x: torch.export.export(module, (x,)),
    ],
    ids=["dynamo", "export"],
)
def test_of_what_a_compiler_refuses_the_line_of_the_library_is_named_and_that_which_called_it(
    write: Write, tmp_path: Path, compiled: Callable[..., object]
) -> None:
    write("away/site-packages/library/layers.py", LIBRARY)
    write("net.py", CALLER)
    sys.path.append(str(tmp_path / "away/site-packages"))
    module, x = load("net.py:build").module, torch.randn(2, 4)
    with pytest.raises(RuntimeError) as raised:
        compiled(module, x)
    said = explain(raised.value, otherwise="leave the mode out")
    assert said.endswith(" (library/layers.py:7, called at net.py:7): leave the mode out")
    assert "same reduction dim, but got [2, 4] X [9, 9]" in said
    assert "from user code" not in said


def test_of_what_inductor_refuses_the_line_is_that_which_it_quotes(tmp_path: Path) -> None:
    quoted = "".join(
        f'  File "{file}", line {line}, in forward\n    return f(x)\n'
        for file, line in ((f"{tmp_path}/net.py", 12), (torch.nn.modules.linear.__file__, 134))
    )
    error = RuntimeError(f"LoweringException: no such kernel\nFound from : \n{quoted}\n\nSet TORCH_LOGS")
    said = f"RuntimeError: LoweringException: no such kernel ({tmp_path}/net.py:12): correct that"
    assert explain(error) == said


def test_an_error_that_is_cut_says_so() -> None:
    assert explain(ValueError("x" * 1000)) == f"ValueError: {'x' * 500}…: correct that"


def test_our_top_level_names_are_all_known() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {name.rstrip("*") for name in told["packages"]["find"]["include"]}
    assert {*packages, *told["py-modules"]} == OURS
