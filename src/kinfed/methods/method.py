"""What a federated method is: two halves, one at the server and one where the data are.

A method holds its hyper-parameters and nothing else. What it knows is an argument and a result, so that the same
functions run in a loop, in worker processes and on another machine, and give the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch

from kinfed.data.samples import Samples
from kinfed.learning import SGD
from kinfed.models import Model, Source, Tensors
from kinfed.streams import torch_stream

__all__ = ["Client", "ClientId", "Memory", "Message", "Method", "Server", "State"]

ClientId = int


@dataclass(frozen=True)
class Message:
    """What travels, and what is kept: named tensors and named numbers, nothing else."""

    tensors: Tensors = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Payload: the bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


State = Message  # what the server knows between rounds
Memory = Message  # what stays with a client between rounds


@dataclass(frozen=True, kw_only=True)
class Site:
    """What both halves are given.

    Attributes:
        model: A model with the federation's common initial weights, to be changed freely.
        seed: Of the run.
        round: 1 to ``rounds``.
        rounds: T.
        sources: Pre-trained models that everybody has, on the model's device, where the method asks for them.
    """

    model: Model
    seed: int
    round: int
    rounds: int
    sources: Sequence[Source] = ()


@dataclass(frozen=True, kw_only=True)
class Client(Site):
    """One client in one round. Its test samples are not here: no method can read them.

    Attributes:
        id: 0 to N-1.
        train: Its training samples, on the model's device; labelled.
        sgd: How to train in this round.
        probe: The server's images (`Server.probe`), where the method sends them to the clients.
    """

    id: ClientId
    train: Samples
    sgd: SGD
    probe: Samples | None = None

    def stream(self, purpose: str | int) -> torch.Generator:
        """This client's random stream for one purpose in this round."""
        return torch_stream(self.seed, purpose, self.id, self.round)

    @property
    def last_round(self) -> bool:
        """Whether no round follows, so that costly evaluations are due."""
        return self.round == self.rounds


@dataclass(frozen=True, kw_only=True)
class Server(Site):
    """The server in one round.

    Attributes:
        clients: N.
        probe: Images that the server itself holds, unlabelled, on the model's device; or None.
    """

    clients: int
    probe: Samples | None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One federated method. Read a subclass from top to bottom like the paper's algorithm.

    Attributes:
        trains: Who trains in a round: the clients sampled for it, all of them, or one that holds everybody's data.
        personal: Whether a client ends up with a model that others do not have.
        headline: Which accuracy on the clients' own test samples is ``personal`` in the metrics: that of the ``global``
            model, or of a model that `evaluated` names.
        tested: What the headline accuracy tests at each client, for people.
        sends_probe: Whether the server gives the images that it holds to the clients.
        supervised: Whether training reads labels. If not, the heads of the models are as they were initialised, and
            what a model is worth is what a classifier on its body is (`kinfed.learning.linear_probe`).
        adapts: Whether clients can fine-tune a model in the last evaluation; not if they have no labels.
        mixes_architectures: Whether clients may have models of different architectures.
        needs_sources: Whether there must be source models.
        trains_head_alone: True if a head is trained on a frozen body, for which one sample is enough also where
            BatchNorm is.
        trial: Fields for a trial of a few rounds on a few small images, where the defaults are for more;
            `kinfed.testing` joins those of all bases.
        unknown: Prefixes of names in the server's state; in these tensors NaN stands for what is not known.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "sampled"
    personal: ClassVar[bool] = False
    headline: ClassVar[str] = "global"
    tested: ClassVar[str] = "global"
    sends_probe: ClassVar[bool] = False
    supervised: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = False
    needs_sources: ClassVar[bool] = False
    unknown: ClassVar[tuple[str, ...]] = ()
    trains_head_alone: ClassVar[bool] = False
    trial: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:  # noqa: B027
        """Refuse fields that do not go together.

        Raises:
            InputError: One line that names the field, the value and what is allowed.
        """

    @property
    def needs_probe(self) -> bool:
        """Whether the server must hold images of its own."""
        return False

    @property
    def least_rounds(self) -> int:
        """How many rounds a run must have."""
        return 1

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:  # noqa: B027
        """Refuse models or data that the method cannot work with, before anything is done.

        Args:
            models: One of each architecture that clients have; the server has the first.
            sources: Pre-trained models, where the method asks for them.
            shape: Of one input, (c, h, w) for images.

        Raises:
            InputError: One line that names the field, the value and what is allowed.
        """

    def selects(self, state: State, round: int) -> bool:
        """Whether a source model is to be chosen in a round, by what the server knows before it."""
        del state, round
        return False

    # -- at the server ------------------------------------------------------------------------------------------------

    @abstractmethod
    def init(self, server: Server) -> State:
        """What the server knows before round 1."""

    @abstractmethod
    def download(self, state: State, client: ClientId) -> Message:
        """What a client receives; it may differ from client to client."""

    @abstractmethod
    def aggregate(self, server: Server, state: State, uploads: Mapping[ClientId, Message]) -> State:
        """The next state from what came back, one upload at least, in client order. Changes none of its arguments."""

    @abstractmethod
    def upload_like(self, server: Server) -> Tensors:
        """Tensors with the names, shapes and types that an upload must have; their values do not matter."""

    def global_model(self, server: Server, state: State) -> Tensors | None:
        """All tensors of the one model that serves everybody, or None if the method has none."""
        del server, state
        return None

    def pictures(self, state: State) -> Tensors:
        """Matrices of the state that a report should show, by name."""
        del state
        return {}

    # -- where the data are -------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, client: Client, message: Message, memory: Memory) -> tuple[Message, Memory]:
        """Local work: what goes up, and what stays.

        The upload's numbers hold ``samples`` (its weight, ≥ 1), ``steps``, ``skipped`` and, if a step was made,
        ``loss``. Of that, ``cross_entropy`` is told where labels are learned, and ``term`` where the method adds one.
        Changes neither ``message`` nor ``memory``.
        """

    def evaluated(self, client: Client, message: Message, memory: Memory) -> dict[str, Tensors]:
        """The client's own models after this round, by name: all tensors of each. Empty if it uses the global model.

        What is costly is left to the last round.
        """
        del client, message, memory
        return {}
