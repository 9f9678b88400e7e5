"""Flower's simulation: FedAvg or FedProx, one CPU for a client. ``run_flower.py METHOD CLIENTS ROUNDS``."""

import os
import sys

import torch
import workload
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedProx
from flwr.simulation import run_simulation
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

method, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client_app, server_app = ClientApp(), ServerApp()
kept: dict = {}  # what a worker process reads once


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client, as Flower's quickstart does."""
    torch.set_num_threads(1)
    if not kept:
        kept["data"] = TensorDataset(*workload.samples("train"))
        kept["shares"] = workload.shares(clients, len(kept["data"]))
    own = Subset(kept["data"], kept["shares"][context.node_config["partition-id"]].tolist())
    network = workload.Network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    before = [weight.detach().clone() for weight in network.parameters()]
    mu = message.content["config"].get("proximal-mu", 0.0)
    optimiser = torch.optim.SGD(network.parameters(), workload.LR, workload.MOMENTUM)
    for images, labels in DataLoader(own, batch_size=workload.BATCH, shuffle=True):
        optimiser.zero_grad()
        loss = functional.cross_entropy(network(images), labels)
        if mu:
            loss = loss + mu / 2 * sum((w - b).norm(2) ** 2 for w, b in zip(network.parameters(), before, strict=True))
        loss.backward()
        optimiser.step()
    records = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(own)})}
    return Message(content=RecordDict(records), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds, each of which ends with a test and a wait."""
    turns, (images, labels) = workload.Turns(), workload.samples("test")
    network = workload.Network()

    @torch.no_grad()
    def test(round: int, arrays: ArrayRecord) -> MetricRecord:
        network.load_state_dict(arrays.to_torch_state_dict())
        right = sum(
            int((network(part).argmax(1) == truth).sum())
            for part, truth in zip(images.split(500), labels.split(500), strict=True)
        )
        turns.wait(right / len(labels) if round else None)
        return MetricRecord({"accuracy": right / len(labels)})

    plan = FedAvg(fraction_evaluate=0.0)
    if method == "fedprox":
        plan = FedProx(fraction_evaluate=0.0, proximal_mu=workload.MU["fedprox"])
    plan.start(
        grid=grid,
        initial_arrays=ArrayRecord(network.state_dict()),
        train_config=ConfigRecord({"lr": workload.LR}),
        num_rounds=rounds,
        evaluate_fn=test,
    )


if __name__ == "__main__":
    for setting in ("FLWR_DISABLE_UPDATE_CHECK", "RAY_DISABLE_IMPORT_WARNING"):
        os.environ[setting] = "1"
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
