"""Imports a user's own code and runs it: whatever is wrong there is said in one line, with the remedy."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from multiprocessing.process import BaseProcess
from pathlib import Path
from traceback import FrameSummary
from types import CodeType, ModuleType
from typing import Any

import torch

from models.naming import PREFIX, ModuleError, Source

HOME = Path(__file__).resolve().parents[1]
OURS = frozenset({"models", "service", "loadtests", "dashboards", "launchbound", "launchbound_pytest"})
"""What launchbound's own code is imported as, which code of the user's may be called as well."""

_STANDARD = sysconfig.get_path("stdlib")
_IMPORTING = ("<frozen importlib", importlib.__file__, __file__, __file__.replace("user_code", "workload"))
_OF_NOBODY = ("site-packages", "dist-packages")
_COMPILER = frozenset({"torch", "functorch", "sympy", "triton"})
"""Installed packages whose own lines do not say where a model breaks."""

_OUR_FILES = tuple(f"{HOME / name}{end}" for name in OURS for end in (".py", os.sep))


def import_source(source: Source) -> ModuleType:
    """The module of `source`. Raises ModuleError."""
    top = source.name.partition(".")[0]
    taken = frozenset(name for name in {top, *OURS} if _is_taken(name, source.root))
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if taken:
        sys.meta_path.insert(0, _Finder(source.root, taken))
    if str(source.root) not in sys.path:
        sys.path.insert(0, str(source.root))
    name = PREFIX + source.name if top in taken else source.name
    with running(f"importing {source.said}"), _no_new_processes(source.said):
        try:
            return _import_file(source, taken) if source.file else importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            ours = f"; launchbound's own package is called '{top}' as well" if top in OURS - taken else ""
            raise source.missing(ours) from None


def _is_taken(top: str, root: Path) -> bool:
    """Whether `root` has a `top` of its own, and `import top` in this process gives another one."""
    own = root / top
    if not (own.is_dir() or own.with_suffix(".py").is_file()):
        return False
    if top in OURS:
        return root.resolve() != HOME
    loaded = sys.modules.get(top)
    places = [getattr(loaded, "__file__", None), *getattr(loaded, "__path__", ())]
    return loaded is not None and not any(
        place and Path(place).is_relative_to(own.parent) for place in places
    )


def _import_file(source: Source, taken: frozenset[str]) -> ModuleType:
    assert source.file is not None
    path = str(source.file)
    loader = _Renaming(source.name, path, taken) if taken else SourceFileLoader(source.name, path)
    spec = spec_from_file_location(source.name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[source.name] = module  # dataclasses, pickle and Dynamo look there
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[source.name]
        raise
    return module


class _Finder(MetaPathFinder):
    """Finds packages of the user's in `root` whose names are `taken`, each under PREFIX and its name.

    All other code in `root` is loaded so that its imports of them give the user's.
    """

    def __init__(self, root: Path, taken: frozenset[str]) -> None:
        self._root = root
        self._taken = taken

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        own = fullname.removeprefix(PREFIX)
        if path is None and own != fullname and own in self._taken:
            found = PathFinder.find_spec(own, [str(self._root)])
        else:
            found = PathFinder.find_spec(fullname, path)
            if found is None or not self._is_users(found):
                return None
        if found is None:
            return None
        spec: ModuleSpec | None = ModuleSpec(fullname, None, is_package=True)  # a folder without __init__.py
        if isinstance(found.loader, SourceFileLoader):
            loader = _Renaming(fullname, found.loader.path, self._taken)
            spec = spec_from_file_location(fullname, loader.path, loader=loader)
        if spec is not None and found.submodule_search_locations is not None:
            spec.submodule_search_locations = list(found.submodule_search_locations)
        return spec

    def _is_users(self, spec: ModuleSpec) -> bool:
        if not isinstance(spec.loader, SourceFileLoader):
            return False
        file = Path(spec.loader.path)
        inside = file.is_relative_to(self._root) and not set(_OF_NOBODY) & set(file.parts)
        return inside and not file.resolve().is_relative_to(HOME)


class _Renaming(SourceFileLoader):
    """Loads a file with its imports of packages that are `taken` renamed; never from kept bytecode."""

    def __init__(self, fullname: str, path: str, taken: frozenset[str]) -> None:
        super().__init__(fullname, path)
        self._taken = taken

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        renamed = ast.fix_missing_locations(_Renamer(self._taken).visit(tree))
        code: CodeType = compile(renamed, self.path, "exec", dont_inherit=True)
        return code


class _Renamer(ast.NodeTransformer):
    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = taken

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if node.level == 0 and node.module:
            node.module = self._renamed(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for one in node.names:
            name = self._renamed(one.name)
            found.append(ast.copy_location(ast.Import([ast.alias(name, one.asname)]), node))
            if name != one.name and one.asname is None:
                top = one.name.partition(".")[0]
                found.append(ast.copy_location(ast.Import([ast.alias(PREFIX + top, top)]), node))
        return found

    def _renamed(self, name: str) -> str:
        return PREFIX + name if name.partition(".")[0] in self._taken else name


@contextmanager
def running(what: str) -> Iterator[None]:
    """Within: code of the user's runs, with nothing on its standard input. What it prints goes to stderr.

    What it raises is printed without our frames, and becomes a ModuleError that begins with `what`. Number of
    threads and grad mode are afterwards what they were: they are the service's.
    """
    stdin, arguments, threads, grads = sys.stdin, sys.argv, torch.get_num_threads(), torch.is_grad_enabled()
    try:
        with open(os.devnull) as nothing, redirect_stdout(sys.stderr):
            sys.stdin, sys.argv = nothing, [what]
            yield
    except (ModuleError, KeyboardInterrupt):
        raise
    except BaseException as error:
        print(_traceback(error).replace(PREFIX, ""), file=sys.stderr)
        raise ModuleError(f"{what} failed: {explain(error)}") from error
    finally:
        sys.stdin, sys.argv = stdin, arguments
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_grad_enabled(grads)


@contextmanager
def _no_new_processes(named: str) -> Iterator[None]:
    """Within: a process of `multiprocessing` is refused. By `spawn` it would import the code again."""

    def refuse(self: BaseProcess) -> None:
        raise ModuleError(
            f"{named} starts a process while it is imported: put that under `if __name__ == '__main__':`"
        )

    start = BaseProcess.start
    BaseProcess.start = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        BaseProcess.start = start  # type: ignore[method-assign]


@contextmanager
def leaving_no_process(what: str) -> Iterator[None]:
    """Within: processes may be started, but must have ended at its end. Raises ModuleError."""
    before = set(multiprocessing.active_children())
    yield
    if left := [process.name for process in multiprocessing.active_children() if process not in before]:
        raise ModuleError(
            f"{what} leaves {', '.join(left)} running, which takes cores from what is measured: end it first"
        )


_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"^EOFError|^BdbQuit",
        "it reads standard input, which is empty here: read a file or an environment variable instead",
    ),
    (
        r"^SystemExit",
        "it ends the process: put its command line under `if __name__ == '__main__':`",
    ),
    (
        r"out of memory|allocate memory|^MemoryError|not enough memory",
        "it needs more memory than there is: take a smaller batch, bfloat16 or a smaller model",
    ),
    (
        r"not compiled with CUDA|no NVIDIA driver|No CUDA GPUs|on a CUDA device but|CUDA driver"
        r"|from the 'CPU' backend|not implemented for 'CPU'|0 active drivers|(must|only) .*\bCUDA\b",
        "it needs a CUDA device and this one has none or was not asked for one: run it with --device cuda, "
        "choose what runs by torch.cuda.is_available(), load weights with map_location='cpu'",
    ),
    (
        r"Expected all tensors to be on the same device",
        "a tensor is made on a device of its own: make it a buffer, or give it the device of an input",
    ),
    (
        rf"^(ModuleNotFound|Import|Attribute)Error: .*(named|from|module) '({'|'.join(sorted(OURS))})[.']",
        "launchbound's own package has that name: `import` in your code gives yours, but importlib and "
        "pickles do not: load a state_dict in place of a whole module, or rename the package",
    ),
    (
        r"^ModuleNotFoundError: No module named",
        "install that into the environment of launchbound, or correct the import",
    ),
)
"""By a pattern of the error's type and text: what to do."""


MOST_CHARACTERS = 500
"""Of an error's own text. Dynamo quotes the arguments of a call before it says what is wrong with them."""


def explain(error: BaseException, otherwise: str = "correct that") -> str:
    """What a user's code raised, in one line: the error, where in that code, the remedy or `otherwise`.

    Where it was raised from another error that it does not quote, as by lazy imports, that is named as well.
    """
    said, first = _in_one_line(error), _in_one_line(_first_cause(error))
    remedies = (remedy for one in (said, first) for pattern, remedy in _REMEDIES if re.search(pattern, one))
    cause = "" if first.partition(": ")[2] in said else f", caused by {first}"
    return f"{said}{_where(error)}{cause}: {next(remedies, otherwise)}"


def _in_one_line(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = " ".join(_BEHIND.split(message)[0].split()).replace(PREFIX, "")
    text = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _first_cause(error: BaseException) -> BaseException:
    seen = {error}  # by `raise error from error` a chain is a circle
    while error.__cause__ is not None and error.__cause__ not in seen:
        error = error.__cause__
        seen.add(error)
    return error


def _where(error: BaseException) -> str:
    """Where it was raised, as ` (file.py:12)`: in the user's code, or in a library's, and then with the line
    of the user's that called it; '' where none of the stack is of either.
    """
    if isinstance(error, SyntaxError):
        return "" if error.filename is None else f" ({shown_path(error.filename)}:{error.lineno})"
    stack = _stack(error)
    place = place_of(stack)
    caller = place_of([one for one in stack if _is_users(one.filename)])
    called = f", called at {caller}" if caller and caller != place else ""
    return f" ({place}{called})" if place else ""


def _stack(error: BaseException) -> Sequence[FrameSummary]:
    """The code that was running, or of an error of the compiler's, that was being compiled."""
    _, found, told = str(error).rpartition("\nFound from")
    if found:  # Inductor, long after it was traced
        return [FrameSummary(file, int(line), "") for file, line in _TOLD.findall(told)]
    traced: Sequence[FrameSummary] = getattr(error, "real_stack", None) or ()
    return traced or traceback.extract_tb(error.__traceback__)


_TOLD = re.compile(r'File "(.+)", line (\d+), in ')
_BEHIND = re.compile(r"\n  Hint: |\nCaused by: |\n\nfrom user code:|\nFound from|\n\nSet TORCHDYNAMO_VERBOSE")
"""Where what torch adds to the text of an error begins."""


def place_of(stack: Sequence[FrameSummary]) -> str:
    """The innermost line of `stack` that is the user's or a library's, as `file.py:12`; '' where none is."""
    for frame in reversed(stack):
        installed = _in_environment(frame.filename)
        if _is_users(frame.filename) or (installed and installed.parts[0] not in _COMPILER):
            return f"{shown_path(frame.filename)}:{frame.lineno}"
    return ""


def _is_users(file: str) -> bool:
    if file.startswith(("<", _STANDARD, *_OUR_FILES)):
        return False
    return not set(_OF_NOBODY) & set(Path(file).parts)


def _in_environment(file: str) -> Path | None:
    """The path within the folder of installed packages; None where it is in none, or ours."""
    parts = Path(file).parts
    places = [number for number, part in enumerate(parts) if part in _OF_NOBODY]
    return Path(*parts[places[-1] + 1 :]) if places and not file.startswith(_OUR_FILES) else None


def shown_path(file: str) -> str:
    path = Path(file)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return str(_in_environment(file) or short)


def _traceback(error: BaseException) -> str:
    """The traceback of `error` without our frames and those of Python's importing."""
    report = traceback.TracebackException.from_exception(error)
    report.stack = traceback.StackSummary.from_list(
        [frame for frame in report.stack if not frame.filename.startswith(_IMPORTING)]
    )
    return "".join(report.format())


def code_files(root: Path, top: str) -> list[Path]:
    """The files of the user's that this process has imported, sorted: those in `root`, but for installed ones
    and ours, and those of the package `top`, wherever it is.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        file = _file_of(module)
        in_root = file is not None and Path(file).is_relative_to(root) and _is_users(file)
        if file is not None and (in_root or name.partition(".")[0] == top):
            found.add(Path(file))
    return sorted(found)


def _file_of(module: Any) -> str | None:  # noqa: ANN401 - anything may lie in sys.modules
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None
