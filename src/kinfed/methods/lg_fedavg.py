"""LG-FedAvg: Liang et al. 2020, Think Locally, Act Globally: Federated Learning with Local and Global Representations.

https://arxiv.org/abs/2001.01523
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kinfed.methods.fedavg import FedAvg
from kinfed.methods.method import Serves
from kinfed.models import BODY, HEAD, Part

__all__ = ["LGFedAvg"]


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(FedAvg):
    """Personal body, shared head: the reverse of FedPer; both are trained together.

    >>> LGFedAvg().shared, LGFedAvg().private
    (('head.',), ('body.',))
    """

    shared: ClassVar[Part] = HEAD
    private: ClassVar[Part] = BODY
    serves: ClassVar[Serves] = "private"
    primary: ClassVar[str] = "own"
    primary_label: ClassVar[str] = "own body"
