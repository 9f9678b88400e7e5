"""What the messages of a method carry and what it tells about labels, in plain words, as methods declare it.

`kinfed methods --travels`, the cards of the methods and docs/privacy.md show it; a test compares it with real messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinfed.models import BODY, HEAD, Part

__all__ = ["NO_LABELS", "NUMBERS", "OF_ALL", "OF_BODY", "OF_GROUP", "OF_HEAD", "POOLED", "Sent", "of_parts", "told"]

NO_LABELS = "nothing: training reads none"
OF_BODY = "which classes the client's features separate, roughly"
OF_HEAD = "the share of each class, from the change of its bias"

OF_ALL = "those of all clients together, as what they send"
OF_GROUP = "those of its group together, as what they send"

# Numbers of every upload.
NUMBERS = ("samples", "steps", "skipped", "loss", "cross_entropy", "term")


@dataclass(frozen=True)
class Sent:
    """Something that messages of a method carry.

    Attributes:
        names: Names, or their beginnings, of the tensors and numbers.
        what: What it is.
        size: How many numbers it has, in words or letters: K classes, d features, L public images.
        labels: What it tells about the labels of the client.
        when: When it is sent; empty for always.

    >>> told([Sent(("counts",), "samples of each class", "K", "their number, exactly")])
    'samples of each class (K)'
    """

    names: tuple[str, ...]
    what: str
    size: str
    labels: str
    when: str = ""


POOLED = (Sent((), "all samples", "the data", "all of them", "once"),)  # of a method that trains at one place


def of_parts(shared: Part, whose: str, *, labels: bool, body: str = OF_BODY, head: str = OF_HEAD) -> list[Sent]:
    """Describe the parts of a model in a message.

    Args:
        shared: Parts that are sent.
        whose: Whose they are, as in "after the client's training".
        labels: True if training reads labels.
        body: What the body tells about labels.
        head: What the head tells about labels.
    """
    tells = {**dict.fromkeys(BODY, body), **dict.fromkeys(HEAD, head)} if labels else {}
    names = [prefix.rstrip(".") for prefix in shared]
    return [
        Sent((prefix,), f"{name} {whose}", f"the {name}", tells.get(prefix, NO_LABELS))
        for prefix, name in zip(shared, names, strict=True)
    ]


def told(sent: Sequence[Sent]) -> str:
    """Return a description of a message in one line."""
    parts = [f"{one.what} ({one.size}){f', {one.when}' if one.when else ''}" for one in sent]
    return "; ".join(parts) or "nothing"
