"""Letters between the server and the sites: a JSON object and named tensors, in a record of Flower.

Tensors travel as one safetensors file, which keeps their bits and types. Nothing in a letter can run code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from kinfed.models import Tensors, apart

__all__ = ["Letter", "numbers_of"]


@dataclass(frozen=True)
class Letter:
    """What travels between the server and a site.

    Attributes:
        about: JSON object.
        tensors: Tensors by name.
    """

    about: Mapping[str, Any]
    tensors: Tensors = field(default_factory=dict)

    def record(self) -> RecordDict:
        """Pack the letter."""
        data = save(apart(self.tensors)) if self.tensors else b""
        file = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
        about = ConfigRecord({"json": json.dumps(dict(self.about))})
        return RecordDict({"about": about, "tensors": ArrayRecord({"file": file})})

    @classmethod
    def of_record(cls, record: RecordDict) -> Letter:
        """Unpack a letter.

        Raises:
            ValueError: If the record is no letter.
        """
        try:
            about, data = json.loads(str(record["about"]["json"])), bytes(record["tensors"]["file"].data)
            tensors = load(data) if data else {}
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError, SafetensorError) as error:
            raise ValueError(f"its message cannot be read: {type(error).__name__}") from error
        if not isinstance(about, dict):
            raise ValueError("its message cannot be read: it is no JSON object")
        return cls(about, tensors)


def numbers_of(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a message as plain ones; a method may give those of NumPy or torch."""
    return {name: number.item() if hasattr(number, "item") else number for name, number in numbers.items()}
