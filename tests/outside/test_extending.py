"""docs/extending.md does what it says: its files are written, and its other Python runs, from top to bottom."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinfed

GUIDE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.mark.slow
def test_the_guide_runs_from_top_to_bottom(tmp_path: Path) -> None:
    program = ["import json"]
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
        else:
            program.append(block)
    (tmp_path / "program.py").write_text("\n".join(program))
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(kinfed.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
