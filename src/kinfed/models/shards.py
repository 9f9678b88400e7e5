"""Shards: safetensors files with the tensors of many clients, of which one is read without the others.

The model ``client-00003-personal`` in the shard ``clients-00000-00099-own.safetensors`` is read by the path that its
own file would have, ``client-00003-personal.safetensors`` in the same folder. The JSON file beside the shard has the
cards of its models, and is its index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kinfed.errors import InputError
from kinfed.files import read_json_object, write_whole

__all__ = ["MODEL_FILES", "card_of", "is_saved", "saved_models", "shard_name", "shard_of", "write_cards"]

# Files of models in the folder of a run: of single models, and of shards.
MODEL_FILES = r"models/(?:global|client-\d+-\w+|clients-\d+-\d+-\w+)\.(?:safetensors|json)"
_MEMBER = re.compile(r"client-(\d+)-\w+")
_SHARD = re.compile(r"clients-(\d+)-(\d+)-\w+")
LARGEST = 2**28  # bytes of the cards of a shard


def shard_name(first: int, last: int, kind: str) -> str:
    """Return the name of the shard with models of the clients from one number to another.

    >>> shard_name(0, 99, "own")
    'clients-00000-00099-own'
    """
    return f"clients-{first:05d}-{last:05d}-{kind}"


def shard_of(path: Path) -> Path | None:
    """Return the shard whose member is the model, or its card, that a path names; None if there is none."""
    told = _MEMBER.fullmatch(path.stem)
    if told is None or path.is_file():
        return None
    for shard in _shards(path.parent):
        if int(told[1]) in _range(shard) and path.stem in _cards(shard):
            return shard.with_suffix(path.suffix)
    return None


def is_saved(path: Path) -> bool:
    """Return True if a path names a model, in a file of its own or in a shard."""
    return path.is_file() or shard_of(path) is not None


def saved_models(folder: Path) -> list[str]:
    """Return the names of the models in a folder, in files of their own and in shards, sorted."""
    alone = [path.stem for path in folder.glob("*.safetensors") if not _SHARD.fullmatch(path.stem)]
    return sorted({*alone, *(name for shard in _shards(folder) for name in _cards(shard))})


def card_of(path: Path) -> bytes | None:
    """Return the JSON text of the card that a path names, if it is in a shard; None if it is not.

    Raises:
        InputError: If the shard's file of cards is damaged.
    """
    shard = shard_of(path)
    return None if shard is None else json.dumps(_cards(shard)[path.stem]).encode()


def write_cards(path: Path, cards: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the cards of a shard, by the names of its models, to the JSON file beside it."""
    write_whole(path.with_suffix(".json"), json.dumps({"version": 1, "models": cards}) + "\n", durable=False)


def _shards(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("clients-*.safetensors")) if _SHARD.fullmatch(path.stem))


def _range(shard: Path) -> range:
    told = _SHARD.fullmatch(shard.stem)
    assert told is not None
    return range(int(told[1]), int(told[2]) + 1)


def _cards(shard: Path) -> dict[str, Any]:
    path = shard.with_suffix(".json")
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise InputError(f"{path}: must be the cards of the models in {shard.name}, of up to {LARGEST:,} bytes")
    models = read_json_object(path).get("models")
    if not isinstance(models, dict):
        raise InputError(f"{path}: is damaged: it has no cards")
    return models
