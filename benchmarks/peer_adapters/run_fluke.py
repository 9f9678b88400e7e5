"""fluke: FedAvg, FedProx or MOON, by its quick API. ``run_fluke.py METHOD CLIENTS ROUNDS``."""

import importlib
import sys

import workload
from fluke import DDict, FlukeENV
from fluke.data import DataSplitter
from fluke.data.datasets import DataContainer
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver, ServerObserver
from fluke.utils.log import Log

method, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
turns = workload.Turns()


class TakeTurns(ServerObserver, FederationObserver):
    """Waits after each round."""

    accuracy = 0.0

    def server_evaluation(self, round: int, eval_type: str, evals: dict, **_: object) -> None:
        """Keep the test accuracy."""
        self.accuracy = float(dict(evals)["accuracy"])

    def end_round(self, round: int) -> None:
        """Wait."""
        turns.wait(self.accuracy)


environment = FlukeENV()
environment.set_seed(0)
environment.set_device("cpu")
environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
(images, labels), (test_images, test_labels) = workload.samples("train"), workload.samples("test")
data = DataContainer(X_train=images, y_train=labels, X_test=test_images, y_test=test_labels, num_classes=10)
client = DDict(
    batch_size=workload.BATCH,
    local_epochs=1,
    loss="CrossEntropyLoss",
    optimizer=DDict(name="SGD", lr=workload.LR, momentum=workload.MOMENTUM),
    scheduler=DDict(gamma=1, step_size=1),
)
if method in workload.MU:
    client.update(mu=workload.MU[method])
if method == "moon":
    client.update(tau=workload.MOON_TEMPERATURE)
name = {"fedavg": "FedAVG", "fedprox": "FedProx", "moon": "MOON"}[method]
algorithm = getattr(importlib.import_module(f"fluke.algorithms.{method}"), name)(
    clients,
    DataSplitter(dataset=data, distribution="iid"),
    DDict(client=client, server=DDict(weighted=True), model=workload.Network()),
)
algorithm.set_callbacks([Log(), TakeTurns()])
turns.wait()
algorithm.run(n_rounds=rounds, eligible_perc=1.0)
