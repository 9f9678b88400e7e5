"""Flower's processes on this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("flwr")

from kinfed.flower.link import Link

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


def test_processes_end_although_another_signal_ends_the_wait_for_them(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    link = Link(tmp_path, {})
    link.superlink = Mock(wraps=process, pid=process.pid, wait=Mock(side_effect=[KeyboardInterrupt, None]))
    with pytest.raises(KeyboardInterrupt):
        link.__exit__()
    assert process.wait(10) == -signal.SIGKILL
    process.stdout.close()
