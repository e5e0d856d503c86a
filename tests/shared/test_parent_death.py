"""A child ends with its parent, and does not even begin where that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from service.parent_death import owned
from tests.support.processes import gone
from tests.support.serving import until

ENDS_AT_ONCE = """
import os, subprocess, sys
from service.parent_death import owned
command = owned([sys.executable, "-c", "import time; time.sleep(600)"])
child = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
print(child.pid, flush=True)
os._exit(0)
"""

SHOWS_ITSELF = "import os, signal; print(os.getpid(), os.getppid(), signal.getsignal(signal.SIGINT).name)"


def test_the_child_is_the_command_itself_and_leaves_ctrl_c_to_its_parent() -> None:
    child = subprocess.Popen(owned([sys.executable, "-c", SHOWS_ITSELF]), stdout=subprocess.PIPE, text=True)
    output, _ = child.communicate()
    assert output.split() == [str(child.pid), str(os.getpid()), "SIG_IGN"]


def test_a_child_that_is_still_starting_ends_with_a_parent_that_ends_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ONCE], capture_output=True, text=True, check=True)
    until(lambda: gone(int(done.stdout)), "the end of the child")


def test_a_child_whose_parent_was_replaced_before_it_looked_does_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    command = owned([sys.executable, "-c", f"open({str(ran)!r}, 'w')"])
    another = str(psutil.Process().ppid())
    command[command.index(str(os.getpid()))] = another
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the parent ended before its child had started" in done.stderr
    assert not ran.exists()


SUSPENDED_CHILD = """
import os, signal
print(os.getpid(), flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""

FRONT = f"""
import signal, subprocess, sys
from service.parent_death import owned
child = owned([sys.executable, "-c", {SUSPENDED_CHILD!r}], signal.SIGKILL)
subprocess.run(child, start_new_session=True)
"""


def test_a_suspended_child_ends_with_a_front_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        child = psutil.Process(int(front.stdout.readline()))
        until(lambda: child.status() == psutil.STATUS_STOPPED, "the child to be suspended")
        front.kill()
        until(lambda: gone(child.pid), "the end of the child")


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no program /nothing"):
        owned(["/nothing"])
