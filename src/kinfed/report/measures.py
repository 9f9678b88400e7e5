"""The measures by which runs are compared, in words."""

from __future__ import annotations

__all__ = ["WORDS"]

WORDS = {"accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro F1", "auroc": "AUROC"}
