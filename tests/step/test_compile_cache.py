"""Which folders of compiled code are used, which are refused, and what is said of these."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from service.step import compile_cache as module
from service.step.compile_cache import CacheRefused, compile_cache


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


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o755])
def test_compiled_code_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = compile_cache(str(tmp_path))
    folder.chmod(mode)
    with pytest.raises(CacheRefused, match=rf"chmod 700 {folder}"):
        compile_cache(str(tmp_path))


def test_a_link_in_place_of_compiled_code_is_refused(tmp_path: Path) -> None:
    folder = compile_cache(str(tmp_path / "cache"))
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheRefused, match="is a link or a file"):
        compile_cache(str(tmp_path / "cache"))


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


def test_code_of_another_user_in_a_folder_of_root_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_cache(str(tmp_path))
    own = os.geteuid()
    monkeypatch.setattr(module.os, "geteuid", lambda: own + 1)
    monkeypatch.setattr(module, "_refuse_writable_by_others", lambda outer: None)
    with pytest.raises(CacheRefused, match="holds compiled code of user"):
        compile_cache(str(tmp_path))


def test_a_cache_folder_that_is_a_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheRefused, match="set LAUNCHBOUND_CACHE_FOLDER to a folder that you can write to"):
        compile_cache(str(tmp_path / "file"))


def test_a_disk_that_refuses_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> object:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(module.tempfile, "TemporaryFile", refuse)
    with pytest.raises(CacheRefused, match=r"cannot be used \(Read-only file system\)"):
        compile_cache(str(tmp_path))


def test_another_processor_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = compile_cache(str(tmp_path))
    monkeypatch.setattr(module, "processor_facts", lambda: {"model name": "another", "flags": "fewer"})
    assert compile_cache(str(tmp_path)) != here


def test_our_own_folder_that_was_left_to_the_umask_is_narrowed(tmp_path: Path) -> None:
    ours = tmp_path / "launchbound"
    ours.mkdir()
    ours.chmod(0o775)
    compile_cache(str(ours))
    assert stat.S_IMODE(ours.stat().st_mode) == 0o755
