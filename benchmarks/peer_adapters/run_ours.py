"""kinfed, or a loop by hand in plain PyTorch. ``run_ours.py METHOD CLIENTS ROUNDS NAME``, NAME as in CONTESTANTS."""

import functools
import sys

import workload

from kinfed.methods import METHODS
from round import CONTESTANTS


def main() -> None:
    """Take part."""
    method, clients, rounds, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    contestant = CONTESTANTS[name]
    if name.startswith("kinfed"):
        fields = {"mu": workload.MU[method]} if method in workload.MU else {}
        if method == "moon":
            fields["tau"] = workload.MOON_TEMPERATURE
        contestant = functools.partial(contestant, method=METHODS[method](**fields))
    contestant("small_cnn", clients, rounds, workload.Turns().wait)


if __name__ == "__main__":
    main()
