"""The commands of docs/deploy.md, run as they are written, on this machine: a server and two sites.

It needs `kinfed[flower]`, openssl and ssh-keygen. The processes that it starts end with it; it works in a new folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "deploy.md"
START = 20.0  # seconds for processes in the background


def main() -> None:
    """Run all commands of the page in one shell, with pauses after those that stay in the background."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="folder to work in; by default a new temporary one")
    work = parser.parse_args().work or Path(tempfile.mkdtemp(prefix="kinfed-deploy-"))
    work.mkdir(parents=True, exist_ok=True)
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = "set -ex\n" + "".join(block + (f"sleep {START}\n" if block.endswith("&\n") else "") for block in blocks)
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": paths, "FLWR_HOME": str(work / "flwr")}
    began = time.monotonic()
    process = subprocess.Popen(["bash", "-c", script], cwd=work, env=environment, start_new_session=True)
    try:
        code = process.wait()
    finally:
        for stop in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, stop)
                time.sleep(START)
    print(f"exit code {code} after {time.monotonic() - began:.0f} s, in {work}")
    sys.exit(code)


if __name__ == "__main__":
    main()
