"""Base class of federated methods, with the states, messages and sites that its functions work with.

A method holds its hyper-parameters and nothing else. State is an argument and a result of its functions, so that they
give the same bits in a loop, in worker processes and on another machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfed.data.samples import Samples
from kinfed.learning import LocalTraining, Optimizer
from kinfed.methods.picture import Picture
from kinfed.methods.travels import Sent
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
    """Named tensors and named numbers; base of messages and states.

    >>> NamedTensors({"w": torch.zeros(1)}, {"samples": 20})
    NamedTensors(tensors={'w': tensor([0.])}, numbers={'samples': 20})

    Attributes:
        tensors: Tensors by name, on the CPU, without gradients.
        numbers: Numbers by name.
    """

    tensors: Tensors = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Message(NamedTensors):
    """Message between the server and a client: a download or an upload.

    >>> Message({"w": torch.zeros(2, 3)}).nbytes
    24
    """

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes; the numbers do not count."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class ServerState(NamedTensors):
    """State that the server keeps between rounds.

    >>> ServerState({"w": torch.zeros(1)}).tensors
    {'w': tensor([0.])}
    """


@dataclass(frozen=True)
class ClientState(NamedTensors):
    """State that stays with a client between rounds; empty before its first participation.

    >>> ClientState(numbers={"divergence": 0.5})
    ClientState(tensors={}, numbers={'divergence': 0.5})
    """


@dataclass(frozen=True, kw_only=True)
class Site:
    """Server or client in one round; common base of both.

    Attributes:
        model: Model with the common initial weights, which the method may change.
        seed: Seed of the run.
        round: Number of the round, 1 to ``rounds``; 0 for the server before the first round.
        rounds: Number T of rounds.
        sources: Source models, which were trained before on other data, on the model's device; empty unless the method
            requires them.
    """

    model: Model
    seed: int
    round: int
    rounds: int
    sources: Sequence[Source] = ()


@dataclass(frozen=True, kw_only=True)
class Client(Site):
    """Client in one round, without its test samples, which no method can read.

    Attributes:
        id: Number of the client, 0 to N-1.
        train: Labelled training samples of the client, on the model's device.
        training: Settings of local training in this round.
        public_images: Public images of the server (`Server.public_images`), if the method sends them to the clients;
            otherwise None.
        tested_further: True in the evaluation after the last round, if the client is one of those that take the costly
            tests: all, or a sample of very many.
    """

    id: ClientId
    train: Samples
    training: LocalTraining
    public_images: Samples | None = None
    tested_further: bool = False

    def stream(self, purpose: str | int) -> torch.Generator:
        """Random stream of this client for one purpose in this round."""
        return torch_stream(self.seed, purpose, self.id, self.round)


@dataclass(frozen=True, kw_only=True)
class Server(Site):
    """Server in one round.

    Attributes:
        clients: Number N of clients.
        cohort: Number m of clients that are drawn for a round.
        public_images: Public, unlabelled images that the server holds, on the model's device; None if it has none.
        true_groups: Group of each client under a planted shift, N, if the method requires them; otherwise empty.
        client_models: Model of each client with its initial weights, N, if the method requires them; otherwise empty.
            The clients of one architecture share one model.
    """

    clients: int
    cohort: int
    public_images: Samples | None
    true_groups: Sequence[int] = ()
    client_models: Sequence[Model] = ()


def unread(reads: Mapping[str, tuple[str, bool]]) -> dict[str, str]:
    """Return the fields that have no effect, for `Method.idle`.

    >>> unread({"k": ("norm=topk", False), "gamma": ("norm=power", True)})
    {'k': 'norm=topk'}

    Args:
        reads: For each field, the setting in which it has an effect, in words, and True if this is the setting.
    """
    return {field: by for field, (by, in_use) in reads.items() if not in_use}


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """Requirements of a method on a run.

    >>> Requirements(public_images=True, rounds=2).rounds
    2

    Attributes:
        public_images: True if the server must hold public images.
        public_images_at_clients: True if every client receives the server's public images.
        source_models: True if there must be source models.
        true_groups: True if the method is told the groups of a planted shift, which no real federation knows.
        client_models: True if the server must know the architecture of each client.
        fixed_statistics: True if training must not change running statistics, so that BatchNorm needs ``bn`` other than
            ``track``.
        rounds: Least number of rounds.
    """

    public_images: bool = False
    public_images_at_clients: bool = False
    source_models: bool = False
    true_groups: bool = False
    client_models: bool = False
    fixed_statistics: bool = False
    rounds: int = 1


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Federated method: functions for the server and for the clients. A subclass reads like the paper's algorithm.

    >>> from kinfed.methods import make_method
    >>> method = make_method("fedper")
    >>> method.serves, method.primary, method.supervised
    ('private', 'stale', True)

    Attributes:
        trains: Clients that train in a round: those ``sampled`` for it, ``all`` of them, or for ``pooled`` one client
            that holds all data.
        serves: Models that the clients use after the last round: one ``global`` model, a ``private`` one for each
            client, or ``both``. Private models come from `evaluated` or, if that returns none, from fine-tuning.
        primary: Name of the model whose accuracy on the clients' own test samples is ``personal`` in the metrics:
            ``global``, or a name that `evaluated` returns.
        primary_label: Description of this model for reports.
        supervised: True if training reads labels. If it does not, the heads keep their initial values, and the accuracy
            of a model is that of a classifier fitted to its body (`kinfed.learning.linear_probe`).
        adapts: True if clients fine-tune a model in the last evaluation, for which they need labels.
        mixes_architectures: True if clients may have models of different architectures.
        optimizers: Optimisers of the clients with which the method is defined.
        uses_only_means: True if the server uses nothing of what the clients send but the mean over the clients, so that
            the mean, as the upload of one client, gives the same state. It is not inherited by a class with an
            `aggregate` of its own, which must say it itself.
        tells_class_counts: True if what clients send has the number of their samples of each class.
        trains_head_alone: True if heads are trained on a frozen body, so that one sample is enough even with BatchNorm.
        trial: Field values for short test runs (a few rounds on a few small images), if the defaults do not suit them;
            `kinfed.testing` joins those of all base classes.
        space: Fields that are tuned by default beside the learning rate, with values in the form of ``kinfed tune
            --over``: ``0.01,0.1,1``, ``log:LOW:HIGH`` or ``uniform:LOW:HIGH``.
        ceiling: What the method has that no federation has, in words, such as ``all data at one place``; its accuracy
            is a ceiling, and never the best or the advised one. Empty for all other methods.
        unknown: Prefixes of tensor names in the server's state; in these tensors NaN means an unknown value.
    """

    trains: ClassVar[Literal["sampled", "all", "pooled"]] = "sampled"
    serves: ClassVar[Serves] = "global"
    primary: ClassVar[str] = "global"
    primary_label: ClassVar[str] = "global"
    supervised: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = False
    optimizers: ClassVar[tuple[Optimizer, ...]] = ("sgd", "adam", "adamw")
    ceiling: ClassVar[str] = ""
    unknown: ClassVar[tuple[str, ...]] = ()
    uses_only_means: ClassVar[bool] = False
    tells_class_counts: ClassVar[bool] = False
    trains_head_alone: ClassVar[bool] = False
    trial: ClassVar[Mapping[str, Any]] = {}
    space: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:  # noqa: B027
        """Refuse fields that exclude each other.

        Raises:
            InputError: If fields exclude each other; the message names the field, its value and what is allowed.
        """

    @property
    def requires(self) -> Requirements:
        """Requirements of the method on a run."""
        return Requirements()

    @property
    def unwrapped(self) -> Method:
        """Method inside a wrapper such as `Vote`; the method itself if it is no wrapper."""
        return self

    @property
    def idle(self) -> Mapping[str, str]:
        """Fields without effect beside the other fields, each with the setting in which it would have one, in words.

        A config that sets one of them is refused.
        """
        return {}

    @property
    def reads(self) -> frozenset[str]:
        """Fields of the experiment that local training reads, of those that not every method does.

        They are ``local_epochs``, ``momentum``, ``feature_cache_mb`` (with frozen models) and ``save_local`` (if
        clients send whole models). A config that sets one that no method reads is refused.
        """
        return frozenset({"local_epochs", "momentum"})

    def check(self, models: Sequence[Model], sources: Sequence[Source], shape: tuple[int, ...]) -> None:  # noqa: B027
        """Refuse models or data that the method cannot work with, before the first round.

        Args:
            models: One model of each architecture of the clients; the server has the first.
            sources: Pre-trained source models; empty unless the method requires them.
            shape: Shape of one input, (c, h, w) for images.

        Raises:
            InputError: If the method cannot work with them; the message names the field, its value and what is allowed.
        """

    @property
    def carries_up(self) -> Sequence[Sent]:
        """What a client sends in a round, beside the numbers of every upload (`travels.NUMBERS`)."""
        return ()

    @property
    def carries_down(self) -> Sequence[Sent]:
        """What a client receives in a round."""
        return ()

    # -- at the server ------------------------------------------------------------------------------------------------

    @abstractmethod
    def init(self, server: Server) -> ServerState:
        """Return the server's state before the first round."""

    @abstractmethod
    def download(self, state: ServerState, client: ClientId) -> Message:
        """Return the message to a client, which may differ from client to client.

        Args:
            state: State of the server.
            client: Number of the client.
        """

    @abstractmethod
    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Return the next state of the server; no argument is changed.

        Args:
            server: Server in this round.
            state: State before the round.
            uploads: Usable uploads by client, one or more, in client order.
        """

    @abstractmethod
    def upload_like(self, server: Server) -> Tensors:
        """Return tensors with the names, shapes and types that an upload must have; their values do not matter."""

    def global_model(self, server: Server, state: ServerState) -> Tensors | None:
        """Return all tensors of the global model; None if the method has no global model."""
        del server, state
        return None

    def greeting(self, state: ServerState) -> Message | None:
        """Return the message with which a new client trains once, to show to which group it belongs.

        None if the method does not ask: new clients get the global model, or the mean of all clients' models.
        """
        del state
        return None

    def group_of_new(self, server: Server, state: ServerState, upload: Message) -> int:
        """Return the group of a new client, one of `groups`; it is given the mean of this group's models.

        Args:
            server: Server after the last round.
            state: State of the server.
            upload: Upload of the client after training with the `greeting`; it has no numbers.
        """
        raise NotImplementedError

    def extra_download_bytes(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> int:
        """Return the bytes that clients receive in a round besides their messages and the server's images.

        Args:
            server: Server in this round.
            state: State after the round.
            uploads: Usable uploads by client, in client order; may be empty.
        """
        del server, state, uploads
        return 0

    # -- for metrics and reports ---------------------------------------------------------------------------------------

    def notes(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the method's own entries for the round's line of ``metrics.jsonl``, JSON values by name.

        Reports draw numbers over the rounds. Names of kinfed's own entries are refused.

        Args:
            server: Server in this round.
            state: State after the round.
            uploads: Usable uploads by client, in client order; may be empty.
            class_counts: Training samples of each client and class, N×K; for these entries only, not for training.
        """
        del server, state, uploads, class_counts
        return {}

    def groups(self, state: ServerState) -> Tensor | None:
        """Return the group of each client that the method has formed, whole numbers, N; None if it forms none.

        Reports show the groups, and with a planted shift their agreement with the true ones.
        """
        del state
        return None

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Return the matrices of the state that a report draws, by name."""
        del state
        return {}

    def outcome(
        self, server: Server, lines: Sequence[Mapping[str, Any]], class_counts: NDArray[np.int64]
    ) -> dict[str, Any]:
        """Return the method's own entries for ``summary.json``, JSON values by name.

        Args:
            server: Server in the last round.
            lines: Lines of ``metrics.jsonl``, with the `notes` of each round.
            class_counts: Training samples of each client and class, N×K.
        """
        del server, lines, class_counts
        return {}

    # -- at the client -------------------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train at a client, and return its upload and its new state; no argument but the client's model is changed.

        The upload's numbers hold ``samples`` (≥ 1, the client's weight), ``steps``, ``skipped`` samples and, after at
        least one step, ``loss`` and its parts: ``cross_entropy`` for supervised methods, and ``term`` if the method
        adds one.

        Args:
            client: Client in this round.
            message: Message that the client received.
            state: State that the client kept; empty at its first participation.
        """

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Return the client's own models after a round: all tensors of each, by name of the model.

        The result is empty if the client uses the global model. Costly models are only made in the last round.

        Args:
            client: Client in this round.
            message: Message that the client would receive after the round.
            state: State that the client kept; empty if it never took part.
        """
        del client, message, state
        return {}
