"""A federation whose sites keep their data: Flower (flwr) carries the messages, and everything else is kinfed's.

The package needs the extra ``kinfed[flower]``; nothing else in kinfed imports it unless it is asked for. Flower's
telemetry, update check and installations at run time are off unless the environment says otherwise.
"""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads these when it is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
