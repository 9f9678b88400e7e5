"""FedKin: federated averaging among kin, groups of clients whose updates are alike and whom a division helps.

Letters: N clients, m of them in a round, d the width of a sketch. u_in is the change of weight tensor n by client i in
a round, scaled to length 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from kinfed.data.samples import Samples
from kinfed.learning import losses
from kinfed.methods.aggregation import mean_of
from kinfed.methods.grouped import GROUP, Grouped, mean_state, of_group
from kinfed.methods.kin import best_cut, kin_tree
from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState
from kinfed.methods.picture import Picture
from kinfed.models import HEAD, Tensors, select
from kinfed.streams import torch_stream

__all__ = ["FedKin"]

SUM, ROUNDS, POINTS = "kin.sum", "kin.rounds", "kin.points"  # tensors of the server's state
COMMON, SCALES = "kin.common", "kin.scales"
LEVELS, COSTS = "kin.levels", "kin.costs"  # further ones, while the clients are asked
PHASE, ATTEMPTS = "kin.phase", "kin.attempts"  # numbers of the server's state
GATHERING, ASKING, SETTLED = 0.0, 1.0, 2.0  # phases
LEAF, LEVEL = "leaf", "level"  # prefixes of the models of the tree: in the state by leaf, in messages by level
HOLD = "kin.hold"  # number of a message: 1 if samples are held back
LOSS = "kin.loss"  # prefix of numbers of an upload: the sum of held-out losses with the model of a level
SAMPLES = "samples"
MOVE = "kin.move"  # number of an upload: the group that the client moves to
EVERYBODY = "all"  # in place of a group's number: the mean of all groups' models
NEAREST = 3  # other groups that a client is asked about
SURE = 2.0  # standard errors by which another group's model must be better
TINY = 1e-12
UNTOLD = -1.0  # loss of a client that has yet to answer


@dataclass(frozen=True, kw_only=True)
class FedKin(Grouped):
    """FedAvg until the clients tell that they do better among kin, then FedAvg in each group of kin.

    1. Clients with similar data change common weights alike. Over the first rounds, the server adds up how the updates
       of each client differ from the mean. Every client holds some of its samples back.
    2. The server clusters the clients by these sums, ever more finely (`kin_tree`), and averages the updates of the
       last round within every cluster of this tree of kin.
    3. In the next round each client tells how well the mean of its cluster at each level, from all clients down to a
       few, fits the samples that it held back. The groups are the clusters with the least loss (`best_cut`). It may be
       one of all clients.
    4. The same is done again within the groups, up to the middle of the run. Clients are now also asked about the
       models of other groups, and about the mean of all: they may move, and groups may join one another, or all be one
       again. After that, all samples are used.

    A client that takes part for the first time after a division begins from the last common model, and joins the group
    that its update is nearest to.

    >>> FedKin(first=5).primary
    'group'

    Attributes:
        first: Number of rounds in which a client has taken part, on average, before the clients are asked, and between
            two questions; the first one is after a third of all rounds at the latest, but never before round ``first``.
        hold: Share of its samples that a client holds back until the last question.
        most: Largest number of groups into which a group is divided at a time; the server keeps so many models of each
            group while clients are asked.
        sketch: Number d of values to which an update is hashed, ≥ 16; updates with fewer weights are exact.
    """

    trial: ClassVar[Mapping[str, Any]] = {"first": 1}

    first: Annotated[int, Ge(1)] = 3
    hold: Annotated[float, Gt(0), Le(0.5)] = 0.2
    most: Annotated[int, Ge(2)] = 16
    sketch: Annotated[int, Ge(16)] = 4096

    # -- at the server ------------------------------------------------------------------------------------------------

    def init(self, server: Server) -> ServerState:
        """Initial state: one group, in which nothing is known of the clients.

        With one client, or too few rounds to ask, there is never another group, and nothing is held back.
        """
        state, sizes = super().init(server), self._sizes(server)
        width = min(self.sketch, sum(sizes.values()))
        known = {
            SUM: torch.zeros(server.clients, width, dtype=torch.float64),
            ROUNDS: torch.zeros(server.clients, dtype=torch.int64),
            POINTS: torch.zeros(server.clients, width, dtype=torch.float64),
            COMMON: torch.zeros(width, dtype=torch.float64),
            SCALES: torch.ones(len(sizes), dtype=torch.float64),
        }
        phase = GATHERING if server.clients > 1 and self._latest(server) + 1 < server.rounds else SETTLED
        return ServerState({**state.tensors, **known}, {**state.numbers, PHASE: phase, ATTEMPTS: 0.0})

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base with the model of the client's group; when it is asked, with a model for each level."""
        own, phase = super().download(state, client), state.numbers[PHASE]
        models = {**self._of_levels(state, client), **self._of_others(state, client)} if phase == ASKING else {}
        return Message({**own.tensors, **models}, {**own.numbers, HOLD: float(phase != SETTLED)})

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Add up what the updates tell of the clients, form groups when it is time, and aggregate in each one."""
        told = ServerState({**state.tensors, **self.learned(server, state, uploads)}, state.numbers)
        if state.numbers[PHASE] == ASKING:
            told = _with_answers(told, uploads)
        after = super().aggregate(server, told, uploads)
        tensors = {**select(told.tensors, ("kin.", f"{GROUP}0.", LEAF)), **after.tensors}
        phase, attempts = state.numbers[PHASE], state.numbers[ATTEMPTS]
        if phase == GATHERING and self._is_time(server, told):
            phase, tensors = ASKING, {**tensors, **self._tree(server, told, uploads)}
        elif phase == ASKING and self._is_enough(server, told):
            attempts += 1
            phase = SETTLED if self._is_last(server) else GATHERING
            tensors = {name: of for name, of in tensors.items() if not name.startswith((LEAF, LEVELS, COSTS))}
        elif phase == GATHERING and 2 * server.round >= server.rounds:
            phase = SETTLED
        return ServerState(tensors, {**after.numbers, PHASE: phase, ATTEMPTS: attempts})

    def learned(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensors:
        """Return the sums of the clients' deviations, with what is needed to compare a newcomer.

        The deviation of client i in a round is the concatenation of (u_in - ū_n) / s_n over the weight tensors n, with
        the mean ū_n of u_in over the m clients of its group in the round, and s_n² the mean of |u_in - ū_n|²: all
        tensors count alike, whatever their sizes and the clients' step lengths. A newcomer is compared with the mean of
        the last round in which all clients had common weights.
        """
        sums, rounds, points = (state.tensors[name].clone() for name in (SUM, ROUNDS, POINTS))
        common, scales, groups = (state.tensors[name] for name in (COMMON, SCALES, GROUP))
        for group in groups[[*uploads]].unique().tolist():
            ids, start = [id for id in uploads if groups[id] == group], of_group(state, group)
            if not group and (groups.any() or state.numbers[PHASE] == SETTLED):
                for id in ids:
                    sums[id] = self._hashed(server, self._units(server, start, uploads[id]), scales) - common
                    rounds[id], points[id] = 1, sums[id]
            elif state.numbers[PHASE] == GATHERING and len(ids) > 1:
                mean, of_group_scales = self._mean_and_scales(server, start, [uploads[id] for id in ids])
                centre = self._hashed(server, mean, of_group_scales)
                for id in ids:
                    units = self._units(server, start, uploads[id])
                    sums[id] += self._hashed(server, units, of_group_scales) - centre
                    rounds[id] += 1
                if not group:
                    common, scales, points = centre, of_group_scales, sums / rounds.clamp(min=1)[:, None]
        return {SUM: sums, ROUNDS: rounds, POINTS: points, COMMON: common, SCALES: scales}

    def _mean_and_scales(
        self, server: Server, start: ServerState, uploads: Sequence[Message]
    ) -> tuple[Tensors, Tensor]:
        """Return the mean ū_n of each weight tensor's u_in over some clients, and the scales s_n."""
        mean: Tensors = {}
        for upload in uploads:
            for name, unit in self._units(server, start, upload).items():
                mean[name] = mean.get(name, torch.zeros_like(unit)) + unit / len(uploads)
        return mean, torch.stack([1 - of.square().sum() for of in mean.values()]).clamp(min=TINY).sqrt()

    def regrouped(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensor:
        """Form the groups in which the clients do best once enough have answered; after that, admit newcomers."""
        groups, phase = state.tensors[GROUP].clone(), state.numbers[PHASE]
        if phase == ASKING and self._is_enough(server, state):
            levels, costs = state.tensors[LEVELS], state.tensors[COSTS]
            joining = _joining(groups, uploads)
            for group, other in joining.items():
                groups[state.tensors[GROUP] == group] = other
            for group in sorted({*state.tensors[GROUP].tolist()} - joining.keys()):
                members = (state.tensors[GROUP] == group) & (levels[:, 0] >= 0)
                kin = best_cut(levels[members].numpy(), costs[members].numpy()) if members.any() else np.zeros(1)
                if kin.any():
                    groups[members] = int(groups.max()) + 1 + torch.from_numpy(kin)
            there = {*groups.unique().tolist()} - {0}
            for id, upload in uploads.items():
                if upload.numbers.get(MOVE) in there:
                    groups[id] = int(upload.numbers[MOVE])
        elif means := self._means(state):
            for id in uploads:
                if not groups[id]:
                    groups[id] = _nearest(state.tensors[POINTS][id], means)
        return groups

    def _tree(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensors:
        """Return the clusters of each client at each level, and for each of the finest ones its mean of this round.

        Level 0 is the whole group of the client. A client that has yet to take part has -1.
        """
        groups, rounds = state.tensors[GROUP], state.tensors[ROUNDS]
        points = state.tensors[SUM] / rounds.clamp(min=1)[:, None]
        trees = {}
        for group in groups.unique().tolist():
            members = (groups == group) & (rounds > 0) if group or not groups.any() else torch.zeros_like(groups) > 0
            if members.any():
                trees[group] = members, torch.from_numpy(kin_tree(points[members].numpy(), self.most))
        levels = torch.full((server.clients, max(tree.shape[1] for _, tree in trees.values())), -1)
        tensors: Tensors = {}
        for group, (members, tree) in trees.items():
            finest = tree[:, -1:].expand(-1, levels.shape[1] - tree.shape[1])
            levels[members] = torch.cat([tree, finest], dim=1)
            for leaf in tree[:, -1].unique().tolist():
                theirs = {id: of for id, of in uploads.items() if members[id] and levels[id, -1] == leaf}
                if theirs:
                    alone = replace(server, clients=len(theirs))
                    mean = self.base.download(self.base.aggregate(alone, of_group(state, group), theirs), 0)
                    samples = sum(upload.numbers["samples"] for upload in theirs.values())
                    tensors |= {f"{LEAF}{group}-{leaf}.{name}": of for name, of in mean.tensors.items()}
                    tensors[f"{LEAF}{group}-{leaf}.{SAMPLES}"] = torch.tensor(samples, dtype=torch.float64)
        return {**tensors, LEVELS: levels, COSTS: torch.full(levels.shape, UNTOLD, dtype=torch.float64)}

    def _of_levels(self, state: ServerState, client: ClientId) -> Tensors:
        """Return the mean of a client's cluster at each level that has another one than the level before."""
        levels, groups, last = state.tensors[LEVELS], state.tensors[GROUP], None
        models: Tensors = {}
        for level in range(levels.shape[1]) if levels[client, 0] >= 0 else ():
            members = (levels[:, level] == levels[client, level]) & (groups == groups[client])
            leaves = [_leaf(state, int(groups[client]), leaf) for leaf in levels[members, -1].unique().tolist()]
            there = [leaf for leaf in leaves if leaf]
            samples = [leaf.pop(SAMPLES).item() for leaf in there]
            if there and last != (last := members.nonzero().flatten().tolist()):
                mean = mean_of([size / sum(samples) for size in samples], there)
                models |= {f"{LEVEL}{level}.{name}": tensor for name, tensor in mean.items()}
        return models

    def _of_others(self, state: ServerState, client: ClientId) -> Tensors:
        """Return the models of the groups that are nearest to a client, besides its own."""
        means, groups, point = self._means(state), state.tensors[GROUP], state.tensors[POINTS][client]
        own = int(groups[client])
        if own not in means:
            return {}
        near = sorted(means.keys() - {own}, key=lambda group: (_distance(point, means[group]), group))[:NEAREST]
        others = {f"{GROUP}{group}.{n}": of for group in near for n, of in of_group(state, group).tensors.items()}
        everybody = mean_state(state, {group: int((groups == group).sum()) for group in means})
        return {**others, **{f"{GROUP}{EVERYBODY}.{name}": of for name, of in everybody.tensors.items()}}

    def _is_enough(self, server: Server, state: ServerState) -> bool:
        """Return True if half of the clients have answered, or there is no more time to ask."""
        known = state.tensors[LEVELS][:, 0] >= 0
        answered = state.tensors[COSTS][:, 0] != UNTOLD
        return bool(2 * answered.sum() >= known.sum()) or server.round >= 2 * server.rounds // 3

    def greeting(self, state: ServerState) -> Message:
        """Message with the last common model."""
        return self.base.download(of_group(state, 0), 0)

    def group_of_new(self, server: Server, state: ServerState, upload: Message) -> int:
        """Return the group whose mean deviation is nearest to that of the new client."""
        units = self._units(server, of_group(state, 0), upload)
        point = self._hashed(server, units, state.tensors[SCALES]) - state.tensors[COMMON]
        means = self._means(state)
        return _nearest(point, means) if means else 0

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Return the cosines of the clients' deviations while all had common weights, N×N; NaN for unknown ones."""
        points = functional.normalize(state.tensors[POINTS])
        cosines = points @ points.T
        unknown = state.tensors[POINTS].norm(dim=1) == 0
        cosines[unknown] = cosines[:, unknown] = torch.nan
        return {"kin": Picture(cosines, "Similarity of updates", "clients", "clients", similarity=True)}

    def _latest(self, server: Server) -> int:
        """Return the round after which the clients are divided at the latest."""
        return max(self.first, math.ceil(server.rounds / 3))

    def _is_time(self, server: Server, state: ServerState) -> bool:
        attempts = state.numbers[ATTEMPTS]
        often = state.tensors[ROUNDS].double().mean() >= self.first * (attempts + 1)
        known = bool(state.tensors[ROUNDS].any())
        return known and (bool(often) or (not attempts and server.round >= self._latest(server)))

    def _is_last(self, server: Server) -> bool:
        """Return True if there is no time in the first half of the run to ask again after this round."""
        return 2 * (server.round + self.first) >= server.rounds

    def _means(self, state: ServerState) -> dict[int, Tensor]:
        """Return the mean deviation of each group but that of the clients that have yet to take part."""
        groups, points = state.tensors[GROUP], state.tensors[POINTS]
        return {group: points[groups == group].mean(dim=0) for group in groups[groups > 0].unique().tolist()}

    def _sizes(self, server: Server) -> dict[str, int]:
        """Return the sizes of the weight tensors that are compared: matrices and kernels, the head only if need be."""
        shared = {n: p for n, p in server.model.named_parameters() if n.startswith(self.base.shared)}
        weights = {n: p for n, p in shared.items() if p.dim() > 1 and not n.startswith(HEAD)}
        return {name: tensor.numel() for name, tensor in (weights or shared).items()}

    def _units(self, server: Server, start: ServerState, upload: Message) -> Tensors:
        """Return the changes of the weight tensors, each scaled to length 1."""
        changes = self.base.change(server, start, upload)
        return {name: functional.normalize(changes[name].double().flatten(), dim=0) for name in self._sizes(server)}

    def _hashed(self, server: Server, tensors: Tensors, scales: Tensor) -> Tensor:
        """Divide tensors by their scales, and hash their concatenation to d values by a count sketch."""
        joined = torch.cat([tensor / scale for tensor, scale in zip(tensors.values(), scales, strict=True)])
        if len(joined) <= self.sketch:
            return joined
        places, signs = _places_and_signs(server.seed, len(joined), self.sketch)
        return torch.zeros(self.sketch, dtype=torch.float64).index_add_(0, places, signs * joined)

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train as the base does, until the groups are formed without what is held back; answer if asked."""
        own, held = _own(message), self._held(client) if message.numbers.get(HOLD) else ()
        answers: dict[str, float] = {}
        samples = len(client.train)  # the client's weight, also while it holds some back
        if len(held):
            answers = self._answers(client, message, state, client.train.take(held))
            client = replace(client, train=client.train.take(np.setdiff1d(np.arange(len(client.train)), held)))
        upload, state = self.base.update(client, own, state)
        return replace(upload, numbers={**upload.numbers, **answers, "samples": samples}), state

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Models of the client with the model of its group."""
        return super().evaluated(client, _own(message), state)

    def _held(self, client: Client) -> NDArray[np.int64]:
        """Return the rows of the training samples that a client holds back, the same in every round; none of one."""
        size = min(math.ceil(self.hold * len(client.train)), len(client.train) - 1)
        rows = torch.randperm(len(client.train), generator=torch_stream(client.seed, "held out", client.id))
        return np.sort(rows[:size].numpy())

    def _answers(self, client: Client, message: Message, state: ClientState, held: Samples) -> dict[str, float]:
        """Return the sum of the held-out losses with the model of each level, and the group to which the client moves.

        It moves if another group's model is better than the mean of its own by more than two standard errors.
        """
        named = dict.fromkeys(name.partition(".")[0] for name in select(message.tensors, (LEVEL, GROUP)))
        initial, private = client.model.tensors(), select(state.tensors, self.base.private)
        told = {}
        for which in named:
            model = {n.removeprefix(f"{which}."): of for n, of in select(message.tensors, (f"{which}.",)).items()}
            client.model.load({**private, **select(model, self.base.shared)})
            told[which] = losses(client.model, held)
        client.model.load(initial)
        answers = {f"{LOSS}.{which.removeprefix(LEVEL)}": of.sum().item() for which, of in told.items()}
        others = [which for which in told if which.startswith(GROUP) and which != f"{GROUP}{EVERYBODY}"]
        if others and f"{LEVEL}0" in told and len(held) > 1:
            best = min(others, key=lambda which: told[which].sum().item())
            less = told[f"{LEVEL}0"] - told[best]
            if less.mean() > SURE * less.std() / math.sqrt(len(held)):
                answers[MOVE] = float(best.removeprefix(GROUP))
        return answers


def _own(message: Message) -> Message:
    """Return the message of the base, without the models of levels."""
    tensors = {name: tensor for name, tensor in message.tensors.items() if not name.startswith((LEVEL, GROUP))}
    return Message(tensors, {name: number for name, number in message.numbers.items() if name != HOLD})


def _with_answers(state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
    """Return the state with the clients' answers; at a level without a model of its own it is that of the level before.

    An answer with a number that is not finite, or below 0, is left out.
    """
    costs = state.tensors[COSTS].clone()
    for id, upload in uploads.items():
        told = [upload.numbers.get(f"{LOSS}.{level}") for level in range(costs.shape[1])]
        if told[0] is not None and all(loss is None or 0 <= loss < math.inf for loss in told):
            for level, loss in enumerate(told):
                costs[id, level] = costs[id, level - 1] if loss is None else loss
    return replace(state, tensors={**state.tensors, COSTS: costs})


def _joining(groups: Tensor, uploads: Mapping[ClientId, Message]) -> dict[int, int]:
    """Return the groups that join another one, and which, by the losses on what their clients hold back.

    Groups that do better with the mean of all groups' models become one, with a new number. Others join the group whose
    model fits their clients better than their own; of two that would join each other, the larger one stays.

    Args:
        groups: Group of each client, N.
        uploads: Usable uploads by client, with answers.
    """
    sizes = {group: int((groups == group).sum()) for group in groups.unique().tolist() if group}
    answers = {group: [of.numbers for id, of in uploads.items() if groups[id] == group] for group in sizes}

    def gain(group: int, other: int | str) -> float:
        """Return by how much the group's clients lose less with another model; 0 if that is not sure, or not told."""
        names = f"{LOSS}.0", f"{LOSS}.{GROUP}{other}"
        less = [told[names[0]] - told[names[1]] for told in answers[group] if all(name in told for name in names)]
        if not less or 2 * len(less) <= len(answers[group]):
            return 0.0
        error = np.std(less, ddof=1) * math.sqrt(len(less)) if len(less) > 1 else 0.0
        return max(math.fsum(less) - SURE * float(error), 0.0)

    common = max(sizes, default=0) + 1
    joining = dict.fromkeys((group for group in sizes if gain(group, EVERYBODY) > 0), common)
    if len(joining) < 2:
        joining = {}
    for group in sorted(sizes, key=lambda group: sizes[group]):
        if group in joining or group in joining.values():
            continue
        less = {other: gain(group, other) for other in sizes.keys() - {group} - joining.keys()}
        best = max(less, key=lambda other: (less[other], -other), default=None)
        if best is not None and less[best] > 0:
            joining[group] = best
    return joining


def _leaf(state: ServerState, group: int, leaf: int) -> Tensors:
    """Return the mean of a finest cluster of a group, with its number of samples; empty without one."""
    prefix = f"{LEAF}{group}-{leaf}."
    return {name.removeprefix(prefix): tensor for name, tensor in select(state.tensors, (prefix,)).items()}


def _distance(one: Tensor, other: Tensor) -> float:
    return (one - other).square().sum().item()


def _nearest(point: Tensor, means: Mapping[int, Tensor]) -> int:
    return min(means, key=lambda group: _distance(point, means[group]))


@functools.lru_cache(maxsize=2)
def _places_and_signs(seed: int, entries: int, width: int) -> tuple[Tensor, Tensor]:
    """Return the place and the sign of each entry of an update in its sketch."""
    stream = torch_stream(seed, "kin sketch")
    places = torch.randint(width, (entries,), generator=stream)
    return places, torch.randint(2, (entries,), generator=stream).double() * 2 - 1
