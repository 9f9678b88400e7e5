"""Results of tests as JSON, which sites send and the server reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from kinfed.engine.evaluator import TestResult
from kinfed.engine.executor import Failure, Tested
from kinfed.learning import Grade

__all__ = ["grade_of", "grade_told", "tested_of", "tested_told"]


class _Grade(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    samples: int
    correct: float
    measures: dict[str, float | None]
    by_class: tuple[list[int], list[int], list[int]] | None
    cells: list[tuple[int, int, int]]


class _Result(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    test: _Grade
    validation: _Grade
    fault: str


def grade_told(grade: Grade, *, by_class: bool) -> dict[str, Any]:
    """Return a grade as JSON; without the sums of each class if the site does not tell them."""
    told = grade.by_class is not None and by_class
    return {
        "samples": grade.samples,
        "correct": grade.correct,
        "measures": grade.measures,
        "by_class": grade.by_class.tolist() if told and grade.by_class is not None else None,
        "cells": [list(cell) for cell in grade.cells] if by_class else [],
    }


def grade_of(told: Any) -> Grade:
    """Read a grade.

    Raises:
        ValueError: If it is none.
    """
    return _grade(_Grade.model_validate(told))


def _grade(read: _Grade) -> Grade:
    counts = None if read.by_class is None else np.array(read.by_class, dtype=np.int64)
    return Grade(read.samples, read.correct, read.measures, counts, [list(cell) for cell in read.cells])


def tested_told(tested: Tested, *, by_class: bool) -> dict[str, Any]:
    """Return the results of tests as JSON, without the models."""
    results = [
        {
            "name": result.name,
            "test": grade_told(result.test, by_class=by_class),
            "validation": grade_told(result.validation, by_class=by_class),
            "fault": result.fault,
        }
        for result in tested.results
    ]
    return {"results": results, "failures": {name: failure.reason for name, failure in tested.failures.items()}}


def tested_of(about: Mapping[str, Any]) -> Tested:
    """Read the results of tests.

    Raises:
        ValueError: If they are none.
    """
    read = [_Result.model_validate(result) for result in about["results"]]
    results = [
        TestResult(result.name, _grade(result.test), _grade(result.validation), fault=result.fault) for result in read
    ]
    return Tested(results, {str(name): Failure(str(reason)) for name, reason in dict(about["failures"]).items()})
