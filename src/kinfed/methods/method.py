"""What a federated method is: two halves, one at the server and one where the data are.

A method holds its hyper-parameters and nothing else. What it knows is an argument and a result, so that the same
functions run in a loop, in worker processes and on another machine, and give the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kinfed.data.samples import Samples
from kinfed.learning import LocalTraining
from kinfed.methods.picture import Picture
from kinfed.models import Model, Source, Tensors
from kinfed.streams import torch_stream

__all__ = [
    "Client", "ClientId", "ClientState", "Message", "Method", "NamedTensors", "Picture", "Requirements", "Server",
    "ServerState", "Serves", "Site", "unread",
]  # fmt: skip

ClientId = int
Serves = Literal["global", "private", "both"]


@dataclass(frozen=True)
class NamedTensors:
    """Named tensors and named numbers, nothing else.

    Attributes:
        tensors: Tensors by name, on the CPU, without gradients.
        numbers: Numbers by name.
    """

    tensors: Tensors = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Message(NamedTensors):
    """A message between the server and a client, in either direction."""

    @property
    def nbytes(self) -> int:
        """Payload in bytes: that of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class ServerState(NamedTensors):
    """The state that the server keeps between rounds."""


@dataclass(frozen=True)
class ClientState(NamedTensors):
    """The state that stays with a client between rounds."""


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
    sgd: LocalTraining
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


def unread(reads: Mapping[str, tuple[str, bool]]) -> dict[str, str]:
    """Return the fields that nothing reads, for `Method.idle`.

    >>> unread({"k": ("norm=topk", False), "gamma": ("norm=power", True)})
    {'k': 'norm=topk'}

    Args:
        reads: For each field, what reads it and whether that is in use.
    """
    return {field: by for field, (by, in_use) in reads.items() if not in_use}


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Things that a method needs and a run must have.

    Attributes:
        public_images: The server must hold images.
        public_images_at_clients: Every client is given the server's images.
        source_models: There must be source models.
        rounds: Least number of rounds.
    """

    public_images: bool = False
    public_images_at_clients: bool = False
    source_models: bool = False
    rounds: int = 1


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """One federated method. Read a subclass from top to bottom like the paper's algorithm.

    Attributes:
        trains: Clients that train in a round: those sampled for it, all of them, or one that holds everybody's data.
        serves: Models that serve the clients in the end: one ``global`` model, a ``private`` one of each client, or
            ``both``. Private ones come from `evaluated` or, where that has none, from fine-tuning.
        primary: Name of the accuracy on the clients' own test samples that is ``personal`` in the metrics: that of the
            ``global`` model, or of a model that `evaluated` names.
        primary_label: Name of the model that the primary accuracy tests, for people.
        supervised: Training reads labels. If not, the heads of the models are as they were initialised, and what a
            model is worth is what a classifier on its body is (`kinfed.learning.linear_probe`).
        adapts: Clients can fine-tune a model in the last evaluation; they cannot if they have no labels.
        mixes_architectures: Clients may have models of different architectures.
        trains_head_alone: True if a head is trained on a frozen body, for which one sample is enough also where
            BatchNorm is.
        trial: Fields for a trial of a few rounds on a few small images, where the defaults are for more;
            `kinfed.testing` joins those of all bases.
        unknown: Prefixes of names in the server's state; in these tensors NaN stands for what is not known.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "sampled"
    serves: ClassVar[Serves] = "global"
    primary: ClassVar[str] = "global"
    primary_label: ClassVar[str] = "global"
    supervised: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = False
    unknown: ClassVar[tuple[str, ...]] = ()
    trains_head_alone: ClassVar[bool] = False
    trial: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:  # noqa: B027
        """Refuse fields that do not go together.

        Raises:
            InputError: One line that names the field, the value and what is allowed.
        """

    @property
    def requires(self) -> Requirements:
        """Things that a run must have."""
        return Requirements()

    @property
    def unwrapped(self) -> Method:
        """The method itself, or the one inside a wrapper such as `Vote`."""
        return self

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields of the method that would do nothing beside its others, each with what would read it.

        A run that is given one of them is refused.
        """
        return {}

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:  # noqa: B027
        """Refuse models or data that the method cannot work with, before anything is done.

        Args:
            models: One of each architecture that clients have; the server has the first.
            sources: Pre-trained models, where the method asks for them.
            shape: Of one input, (c, h, w) for images.

        Raises:
            InputError: One line that names the field, the value and what is allowed.
        """

    # -- at the server ------------------------------------------------------------------------------------------------

    @abstractmethod
    def init(self, server: Server) -> ServerState:
        """What the server knows before round 1."""

    @abstractmethod
    def download(self, state: ServerState, client: ClientId) -> Message:
        """What a client receives; it may differ from client to client."""

    @abstractmethod
    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """The next state from what came back, one upload at least, in client order. Changes none of its arguments."""

    @abstractmethod
    def upload_like(self, server: Server) -> Tensors:
        """Tensors with the names, shapes and types that an upload must have; their values do not matter."""

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """All tensors of the one model that serves everybody, or None if the method has none."""
        del server, state
        return None

    def extra_download_bytes(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> int:
        """Bytes that the clients receive in a round beside their messages and the server's images.

        Args:
            server: The server in this round.
            state: The state after the round.
            uploads: What came back, in client order; perhaps nothing.
        """
        del server, state, uploads
        return 0

    # -- what it has to show -------------------------------------------------------------------------------------------

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Remarks on a round, anything JSON by name, which stand in its line of ``metrics.jsonl``.

        A report draws those that are numbers round by round. The names of kinfed's own quantities are taken.

        Args:
            server: The server in this round.
            state: The state after the round.
            uploads: What came back, in client order; perhaps nothing.
            class_counts: Training samples of each of N clients and K classes, N×K; no method learns from them.
        """
        del server, state, uploads, class_counts
        return {}

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Matrices of the state that a report draws, by name."""
        del state
        return {}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Remarks on a whole run, anything JSON by name, which stand in ``summary.json``.

        Args:
            server: The server in the last round.
            lines: Lines of ``metrics.jsonl``, with the `notes` of each round.
            class_counts: Training samples of each client and class, N×K.
        """
        del server, lines, class_counts
        return {}

    # -- where the data are -------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, client: Client, message: Message, memory: ClientState) -> tuple[Message, ClientState]:
        """Local work: what goes up, and what stays.

        The upload's numbers hold ``samples`` (its weight, ≥ 1), ``steps``, ``skipped`` and, if a step was made,
        ``loss``. Of that, ``cross_entropy`` is told where labels are learned, and ``term`` where the method adds one.
        Changes neither ``message`` nor ``memory``.
        """

    def evaluated(self, client: Client, message: Message, memory: ClientState) -> dict[str, Tensors]:
        """The client's own models after this round, by name: all tensors of each. Empty if it uses the global model.

        What is costly is left to the last round.
        """
        del client, message, memory
        return {}
