"""FedLab: FedAvg or FedProx, its pipeline in one process, data in memory. ``run_fedlab.py METHOD CLIENTS ROUNDS``."""

import sys

import torch
import workload
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer
from fedlab.contrib.dataset.basic_dataset import BaseDataset, FedDataset
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.functional import evaluate
from torch.utils.data import DataLoader

method, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
turns = workload.Turns()


class InMemory(FedDataset):
    """FedLab's data sets, one for each client; its own read a file whenever a client trains."""

    def __init__(self) -> None:
        images, labels = workload.samples("train")
        self.clients = [self._of(images[rows], labels[rows]) for rows in workload.shares(clients, len(images))]
        self.test = self._of(*workload.samples("test"))

    @staticmethod
    def _of(images: torch.Tensor, labels: torch.Tensor) -> BaseDataset:
        return BaseDataset(list(images), labels.tolist())

    def get_dataloader(
        self, client: int | None = None, batch_size: int | None = None, split: str = "train"
    ) -> DataLoader:
        """Return the batches of a client, or of the test set."""
        data = self.clients[client] if split == "train" else self.test
        return DataLoader(data, batch_size=batch_size, shuffle=split == "train")


class TakeTurns(StandalonePipeline):
    """Tests the model and waits after each round."""

    def evaluate(self) -> None:
        """Test by FedLab's function; the handler of this version has none."""
        batches = data.get_dataloader(split="test", batch_size=500)
        turns.wait(float(evaluate(self.handler._model, torch.nn.CrossEntropyLoss(), batches)[1]))


Handler, Trainer = {
    "fedavg": (FedAvgServerHandler, FedAvgSerialClientTrainer),
    "fedprox": (SyncServerHandler, FedProxSerialClientTrainer),
}[method]
torch.manual_seed(0)
model, data = workload.Network(), InMemory()
handler, trainer = Handler(model, rounds, 1.0, cuda=False), Trainer(model, clients, cuda=False)
handler.num_clients = clients
trainer.setup_dataset(data)
trainer.setup_optim(1, workload.BATCH, workload.LR, **({"mu": workload.MU[method]} if method == "fedprox" else {}))
trainer.optimizer = torch.optim.SGD(trainer._model.parameters(), workload.LR, workload.MOMENTUM)
turns.wait()
TakeTurns(handler, trainer).main()
