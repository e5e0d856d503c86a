"""Compiled code is built and found where a path holds what torch's build commands cannot."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from service.step import compile_cache as module
from service.step.compile_cache import CacheRefused, compile_cache, plain_path
from tests.support.processes import without

ROOT = Path(__file__).parents[2]
NO_MOUNT = 77
NAMES = [
    "a b",
    "it's",
    'say "so"',
    "$HOME",
    "line\nbreak",
    "back\\slash",
    "a;b",
    "tab\t",
    "(x)",
    "a:b",
    "a,b",
]

BUILD = """
import os, sys, tempfile
sys.path.insert(0, sys.argv[1])
import torch
assert torch.__file__.startswith(sys.argv[1])
from service.step.process_state import prepare_process
prepare_process(sys.argv[2])
print(torch.compile(lambda x: x + 1, fullgraph=True)(torch.zeros(2)).tolist(), tempfile.gettempdir())
"""


@pytest.fixture(autouse=True)
def _own_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of these tests lie in a folder of theirs."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(module, "_PLACES", (str(tmp_path / "tmp"),))


@pytest.mark.parametrize("path", ["/a/b", "/a-b_c.d/e@f+g=1", "/grün/日本"])
def test_a_plain_path_is_left_as_it_is(path: str) -> None:
    assert plain_path(Path(path)) == Path(path)


@pytest.mark.parametrize("name", [*NAMES, os.fsdecode(b"bad\xff")], ids=ascii)
def test_any_other_has_a_private_link_that_is_one_word_and_stays_the_same(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    link = plain_path(folder)
    assert link.is_relative_to(tmp_path / "tmp")
    assert shlex.split(str(link)) == [str(link)]
    assert link.resolve() == folder
    assert plain_path(folder) == link
    assert stat.S_IMODE(link.parent.stat().st_mode) == 0o700
    assert plain_path(tmp_path / "an other") != link


def test_a_folder_of_links_that_others_may_write_to_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "tmp" / f"launchbound.links-{os.geteuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    assert plain_path(tmp_path / "a b").is_relative_to(tmp_path / "other")
    assert not list(shared.iterdir())


def test_where_no_link_can_be_made_the_remedy_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_private", lambda folder: False)
    with pytest.raises(ValueError, match="use a path of letters"):
        plain_path(tmp_path / "a b")


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_cache_folder_of_any_name_is_given_by_a_plain_path(name: str, tmp_path: Path) -> None:
    folder = compile_cache(str(tmp_path / name))
    assert shlex.split(str(folder)) == [str(folder)]
    assert folder.resolve().parent == tmp_path / name
    assert compile_cache(str(tmp_path / name)) == folder


def test_a_cache_on_which_nothing_may_be_run_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("service.step.compile_cache.mmap.mmap", refuse)
    with pytest.raises(CacheRefused, match=r"noexec\): set LAUNCHBOUND_CACHE_FOLDER"):
        compile_cache(str(tmp_path))


def test_a_file_system_that_is_mounted_noexec_is_refused(tmp_path: Path) -> None:
    code = "import sys; from service.step.compile_cache import compile_cache; compile_cache(sys.argv[1])"
    mount = f'mount -t tmpfs -o noexec tmpfs "$2" || exit {NO_MOUNT}; exec "$0" -c "$1" "$2"'
    within = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount]
    command = [*within, sys.executable, code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == NO_MOUNT or done.stderr.startswith("unshare"):
        without("this needs the right to mount a disk in a namespace of its own")
    assert "is mounted noexec" in done.stderr


@pytest.mark.compiles
def test_torch_compiles_where_it_its_cache_and_temporary_files_lie_under_a_blank(tmp_path: Path) -> None:
    import torch

    (tmp_path / "site packages").symlink_to(Path(torch.__file__).parents[1])
    (tmp_path / "t m p").mkdir()
    command = [sys.executable, "-c", BUILD, str(tmp_path / "site packages"), str(tmp_path / "my 'cache'")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path / "t m p")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found, _, folder = done.stdout.partition("] ")
    assert found == "[1.0, 1.0"
    assert " " not in folder
