"""pfl-research: FedAvg or FedProx on its simulated backend. ``run_pfl.py METHOD CLIENTS ROUNDS``."""

import sys

import numpy as np
import torch
import workload
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data import FederatedDataset
from pfl.data.dataset import Dataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted, get_overall_value
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

method, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
turns = workload.Turns()


class Network(workload.Network):
    """The network with the loss and the metrics that pfl-research asks of it."""

    def loss(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = False) -> torch.Tensor:  # noqa: A002
        """Return the mean loss."""
        self.train(not eval)
        return functional.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: torch.Tensor, labels: torch.Tensor, eval: bool = True) -> dict:  # noqa: A002
        """Return the accuracy."""
        self.eval()
        right = (self(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(right, len(labels))}


class TakeTurns(TrainingProcessCallback):
    """Waits after each round."""

    def after_central_iteration(self, aggregate_metrics: Metrics, model: object, *, central_iteration: int) -> tuple:
        """Wait."""
        accuracies = [value for name, value in aggregate_metrics if "accuracy" in str(name)]
        turns.wait(float(get_overall_value(accuracies[0])))
        return False, Metrics()


torch.manual_seed(0)
np.random.seed(0)  # noqa: NPY002
images, labels = workload.samples("train")
users = {str(i): (images[rows], labels[rows]) for i, rows in enumerate(workload.shares(clients, len(images)))}
sampler = get_user_sampler("minimize_reuse", list(users))
if method == "fedavg":
    data = FederatedDataset.from_slices(users, sampler)
else:
    data = FederatedDataset(lambda user: Dataset(raw_data=users[user], user_id=user), sampler)
network = Network()
numbers = {
    "central_num_iterations": rounds, "evaluation_frequency": 10**6, "train_cohort_size": clients, "val_cohort_size": 0,
}  # fmt: skip
testing = NNEvalHyperParams(local_batch_size=500)
turns.wait()
(FederatedAveraging() if method == "fedavg" else FedProx()).run(
    algorithm_params=(
        NNAlgorithmParams(**numbers) if method == "fedavg" else FedProxParams(**numbers, mu=workload.MU["fedprox"])
    ),
    backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
    model=PyTorchModel(
        model=network,
        local_optimizer_create=lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=workload.MOMENTUM),
        central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
    ),
    model_train_params=NNTrainHyperParams(
        local_learning_rate=workload.LR, local_num_epochs=1, local_batch_size=workload.BATCH
    ),
    model_eval_params=testing,
    callbacks=[
        CentralEvaluationCallback(Dataset(workload.samples("test")), model_eval_params=testing, frequency=1),
        TakeTurns(),
    ],
)
