"""What encoders are worth before they have learnt anything, by the probes that self-supervised methods are told by.

``python benchmarks/untrained.py DATA… [--models A,B] [--images N] [--seeds S]``

A linear classifier on the frozen initial body, fitted to all labelled training images and tested on the whole test set;
the same of each client's own classes, mean over five clients with disjoint ones; and the nearest neighbours' vote. A
method that stays below these has learnt nothing that helps.
"""

from __future__ import annotations

import argparse
import statistics

from kinfed.engine.evaluator import KNN, LOCAL, PROBED, Evaluator
from kinfed.experiment.assemble import runtime_of
from kinfed.experiment.config import Config
from kinfed.settings import own_settings


def main() -> None:
    """Measure and print, in percent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--models", default="cnn4,small_cnn,mcmahan_cnn,mlp")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    fields = {"train_images": given.images, "public": 500, "clients": 5, "partition": "disjoint", "rounds": 1}
    print(f"{'data':<20}{'model':<14}{'seed':>4}{'global':>8}{'local':>8}{'knn':>8}")
    for data in given.data:
        for model in given.models.split(","):
            for seed in range(given.seeds):
                own = {"methods": ("local_ssl",), "data": data, "model": model, "seed": seed}
                runtime = runtime_of(Config.checked(fields | own))
                with own_settings():
                    results = Evaluator(runtime).evaluate_representation(1, runtime.models[0].tensors(), final=True)
                right: dict[str, list[float]] = {}
                for result in results:
                    right.setdefault(result.name, []).append(100 * (result.test.accuracy or 0.0))
                told = "".join(f"{statistics.fmean(right[name]):>8.1f}" for name in (PROBED, LOCAL, KNN))
                print(f"{data:<20}{model:<14}{seed:>4}{told}", flush=True)


if __name__ == "__main__":
    main()
