"""Which folders of compiled code are used, which are refused, and what is said of these."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from service.engine.compiler import ColdStarts
from service.step import compile_cache as module
from service.step.compile_cache import CacheRefused, compile_cache, plain_path, read_record


def test_it_is_made_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        folder = compile_cache(str(tmp_path / "cache"))
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert compile_cache(str(tmp_path / "cache")) == folder


def test_a_link_to_a_private_cache_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert compile_cache(str(tmp_path / "link")).parent == tmp_path / "disk"


def linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def filed(folder: Path) -> None:
    shutil.rmtree(folder.parent)
    folder.parent.touch()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        *((partial(Path.chmod, mode=mode), "chmod 700 .*/compiled-") for mode in (0o770, 0o702, 0o755)),
        (linked, "is a link or a file"),
        (filed, "set LAUNCHBOUND_CACHE_FOLDER to a folder that you can write to"),
    ],
)
def test_a_folder_in_which_others_could_put_code_or_nobody_any_is_refused_with_the_remedy(
    tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(compile_cache(str(tmp_path / "cache")))
    with pytest.raises(CacheRefused, match=said):
        compile_cache(str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("function", "error", "said"),
    [
        ("tempfile.TemporaryFile", OSError(30, "Read-only file system"), r"cannot be used \(Read-only file"),
        ("mmap.mmap", PermissionError(1, "not permitted"), r"noexec\): set LAUNCHBOUND_CACHE_FOLDER"),
    ],
)
def test_a_disk_that_refuses_files_or_to_run_them_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: OSError, said: str
) -> None:
    monkeypatch.setattr(f"service.step.compile_cache.{function}", Mock(side_effect=error))
    with pytest.raises(CacheRefused, match=said):
        compile_cache(str(tmp_path))


def test_a_folder_around_it_that_others_may_write_to_is_refused_unless_it_is_like_tmp(tmp_path: Path) -> None:
    compile_cache(str(tmp_path))
    tmp_path.chmod(0o775)
    with pytest.raises(CacheRefused, match="chmod go-w"):
        compile_cache(str(tmp_path))
    tmp_path.chmod(0o1777)
    compile_cache(str(tmp_path))


def test_code_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Played with another user id, since tests run as one user."""
    folder = compile_cache(str(tmp_path))
    own = os.geteuid()
    monkeypatch.setattr(module.os, "geteuid", lambda: own + 1)
    with pytest.raises(CacheRefused, match=f"user {own}"):
        compile_cache(str(tmp_path))
    assert folder.exists()
    monkeypatch.setattr(module, "_refuse_writable_by_others", lambda outer: None)  # as in a folder of root
    with pytest.raises(CacheRefused, match="holds compiled code of user"):
        compile_cache(str(tmp_path))


def test_another_processor_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = compile_cache(str(tmp_path))
    monkeypatch.setattr(module, "processor_facts", lambda: {"model name": "another", "flags": "fewer"})
    assert compile_cache(str(tmp_path)) != here


ROOT = Path(__file__).parents[2]

BUILD = """
import os, sys, tempfile
sys.path.insert(0, sys.argv[1])
import torch
assert torch.__file__.startswith(sys.argv[1])
from service.step.process_state import prepare_process
prepare_process(sys.argv[2])
print(torch.compile(lambda x: x + 1, fullgraph=True)(torch.zeros(2)).tolist())
from torch._inductor.codecache import _HEADER_DIR, _HEADER_LOCK_DIR
for folder in (tempfile.gettempdir(), _HEADER_DIR, _HEADER_LOCK_DIR): print(folder)
"""


@pytest.fixture(autouse=True)
def _own_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links of these tests lie in a folder of theirs."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(module, "_PLACES", (str(tmp_path / "tmp"),))


@pytest.mark.parametrize(
    "name", ["a b", "it's", "$HOME", "line\nbreak", "a,b", os.fsdecode(b"bad\xff")], ids=ascii
)
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


@pytest.mark.compiles
def test_torch_compiles_with_private_headers_where_it_its_cache_and_temporary_files_lie_under_a_blank(
    tmp_path: Path,
) -> None:
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
    found, *folders = done.stdout.splitlines()
    assert found == "[1.0, 1.0]"
    assert not any(" " in folder for folder in folders)
    (headers,) = (tmp_path / "my 'cache'").glob(f"compiled-*/{module.HEADERS}")
    assert [Path(folder).resolve() for folder in folders[1:]] == [headers, headers / "locks"]
    assert list(headers.glob("*.gch"))


Seconds = dict[str, float]


@pytest.mark.parametrize("content", [b"", b"{", b'{"decode": "soon"}'])
def test_one_that_is_broken_is_removed_and_made_anew(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    assert read_record(file, Seconds) is None
    assert not file.exists()
    assert "is made anew" in capsys.readouterr().err


def test_a_disk_that_refuses_costs_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = ColdStarts(tmp_path / "missing", "key")
    assert kept.recorded("decode", 1.5) == 1.5
    assert "was not kept" in capsys.readouterr().err
