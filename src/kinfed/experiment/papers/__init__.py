"""Tables and figures of the papers: their numbers, and the experiments that should reproduce them (specification H)."""

from __future__ import annotations

from kinfed.experiment.papers import fedcka, fedcrc, fedshibu, hetero_ssfl, sftl
from kinfed.experiment.papers.figure import PaperFigure
from kinfed.experiment.papers.table import IdentificationTable, PaperTable

__all__ = ["FIGURES", "TABLES"]

TABLES: dict[str, PaperTable | IdentificationTable] = {
    "fedcka-table1": fedcka.TABLE1,
    "fedcka-table2": fedcka.TABLE2,
    "fedcka-table3": fedcka.TABLE3,
    "fedcka-table4": fedcka.TABLE4,
    "fedshibu-table1": fedshibu.TABLE1,
    "fedcrc-table1": fedcrc.TABLE1,
    "fedcrc-table2": fedcrc.TABLE2,
    "fedcrc-table3": fedcrc.TABLE3,
    "hetero-ssfl-table1": hetero_ssfl.TABLE1,
    "hetero-ssfl-table2": hetero_ssfl.TABLE2,
    "hetero-ssfl-table3": hetero_ssfl.TABLE3,
    "hetero-ssfl-table4": hetero_ssfl.TABLE4,
    "sftl-table1": sftl.TABLE1,
    "sftl-table2": sftl.TABLE2,
}
"""Tables by name, as in ``kinfed reproduce NAME``."""

FIGURES: dict[str, PaperFigure] = {
    "fedshibu-figure1": fedshibu.FIGURE1,
    "fedshibu-figure3": fedshibu.FIGURE3,
    "fedshibu-figure4": fedshibu.FIGURE4,
    "fedshibu-figure5": fedshibu.FIGURE5,
    "fedcrc-figure1": fedcrc.FIGURE1,
    "fedcrc-figure3": fedcrc.FIGURE3,
    "fedcka-figure2": fedcka.FIGURE2,
    "fedcka-figure4": fedcka.FIGURE4,
    "fedcka-figure5": fedcka.FIGURE5,
    "sftl-figure2": sftl.FIGURE2,
    "sftl-figure3": sftl.FIGURE3,
    "sftl-figure4": sftl.FIGURE4,
}
"""Figures by name, as in ``kinfed reproduce NAME``."""
