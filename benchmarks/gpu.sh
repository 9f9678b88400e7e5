#!/usr/bin/env bash
# On a bare machine with an NVIDIA GPU: installs kinfed, runs the device tests there, and measures. Under eight minutes.
# Without arguments on the GPU; DEVICE=cpu is a dry run: benchmarks/gpu.sh [options of benchmarks/gpu.py]
set -euo pipefail
cd "$(dirname "$0")/.."
export KINFED_TEST_DEVICE=${DEVICE:-cuda} CUBLAS_WORKSPACE_CONFIG=:4096:8
VENV=${VENV:-.venv-gpu}
if [ ! -x "$VENV/bin/kinfed" ]; then
    python3 -m venv "$VENV"
    "$VENV/bin/pip" install --quiet --disable-pip-version-check --editable . pytest pytest-xdist hypothesis
fi
"$VENV/bin/pytest" -q -p no:cacheprovider tests/engine/test_device.py
"$VENV/bin/python" benchmarks/gpu.py --device "$KINFED_TEST_DEVICE" "$@"
