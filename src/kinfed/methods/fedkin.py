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

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn import functional

from kinfed.learning import adjusted_rand_index
from kinfed.methods.aggregation import mean_of
from kinfed.methods.grouped import GROUP, Grouped, of_group
from kinfed.methods.kin import SURE, best_cut, kin_tree, strays
from kinfed.methods.kin_questions import (
    ROUND,
    Candidate,
    answers,
    question,
    read_answer,
    trained,
    with_trained,
    without_question,
    without_trained,
)
from kinfed.methods.method import Client, ClientId, ClientState, Message, Server, ServerState
from kinfed.methods.picture import Picture
from kinfed.methods.travels import OF_GROUP, Sent
from kinfed.models import HEAD, Tensors, select, under
from kinfed.streams import torch_stream

__all__ = ["FedKin"]

POINTS, ROUNDS = "kin.points", "kin.rounds"  # tensors of the server's state
COMMON, SCALES = "kin.common", "kin.scales"
FOUND, BEST = "kin.found", "kin.best"  # groups of the last question, and those that agree best with the next ones
SINCE, LOOKS = "kin.since", "kin.looks"  # since when a client is in its group or was asked there; how often it was
LEVELS, ANSWERS, WEIGHTS = "kin.levels", "kin.answers", "kin.weights"  # further ones, while the clients are asked
LEAF, START = "kin.leaf", "kin.start."  # prefixes of theirs: mean models of the finest clusters; where all began
OF_QUESTION = (LEVELS, ANSWERS, WEIGHTS, LEAF, START)
PHASE, ASKED, NOW = "kin.phase", "kin.asked", "kin.now"  # numbers of the server's state
AGREED = "kin.agreed"  # another one: how well the groups of two questions in a row agreed at best
GATHERING, ASKING, SETTLED = 0.0, 1.0, 2.0  # phases
WHEN_ASKED = "in rounds in which it is asked"
WATCH = "kin.watch"  # number of a message: 1 if the client shall keep what it trained, since it may be asked
QUESTIONS = 5  # at most, before a division
ENOUGH, SAME = 0.5, 1 - 1e-9  # agreements (adjusted Rand index)
MOST_LOOKS, WAIT = 2, 2  # questions to a client in a group, and rounds before each
LARGEST = 10.0  # loss of a sample, and preference, that is believed
UNTOLD = -1.0  # loss of a client that has yet to answer
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FedKin(Grouped):
    """FedAvg until the clients tell that they do better among kin, then FedAvg in each group of kin.

    1. Clients with similar data change common weights alike. Over the first rounds, the server averages how the updates
       of each client differ from the mean.
    2. The server clusters the clients by that, ever more finely (`kin_tree`), and averages the models of the last round
       within every cluster of this tree of kin.
    3. In the next round each client takes its own part out of the mean of its cluster, at each level from all clients
       down to itself alone, and tells how well the rest fits its samples, and by how much it prefers this to the mean
       of those from whom the cluster was divided (`kin_questions.answers`).
    4. The groups are the clusters with the least loss which surely prefer themselves to each other (`best_cut`), once
       two questions in a row find the same ones. Until then the clients are asked again in the next rounds, unless no
       smaller clusters do better and prefer themselves. If no two questions agree, those count that did so best.
    5. In a group, each client is asked twice whether the model of another group suits it better; if so, it changes to
       that group (`strays`).

    A client that takes part for the first time after a division begins from the last common model, and joins the group
    that its update is nearest to. It is asked as well.

    >>> FedKin(first=5).primary
    'group'

    Attributes:
        first: Number of rounds in which a client has taken part, on average, before the clients are asked. That is
            after a third of all rounds at the latest, but never before round ``first``, nor in runs with fewer than
            ``first`` + 2 rounds.
        most: Largest number of groups; the server keeps so many models while clients are asked.
        sketch: Number d of values to which an update is hashed, ≥ 16; updates with fewer weights are exact.
    """

    trial: ClassVar[Mapping[str, Any]] = {"first": 1}

    first: Annotated[int, Ge(1)] = 5
    most: Annotated[int, Ge(2)] = 16
    sketch: Annotated[int, Ge(16)] = 4096

    # -- at the server ------------------------------------------------------------------------------------------------

    @property
    def carries_up(self) -> Sequence[Sent]:
        """What the base's clients send, and answers to the server's questions."""
        return [
            *super().carries_up,
            Sent(("kin.",), "losses of its kin's models on its samples", "a few", "how like theirs", WHEN_ASKED),
        ]

    @property
    def carries_down(self) -> Sequence[Sent]:
        """The model of the client's group, and the server's questions."""
        return [
            *super().carries_down,
            Sent(("kin.watch",), "whether it may be asked", "1", "nothing"),
            Sent(("kin.",), "mean models of its kin and of the others", "2 or more models", OF_GROUP, WHEN_ASKED),
        ]

    def init(self, server: Server) -> ServerState:
        """Initial state: one group, in which nothing is known of the clients.

        With one client, or too few rounds to ask, there is never another group.
        """
        state, sizes, none = super().init(server), self._sizes(server), torch.zeros(server.clients, dtype=torch.int64)
        width = min(self.sketch, sum(sizes.values()))
        known = {
            **dict.fromkeys((ROUNDS, FOUND, BEST, SINCE, LOOKS), none),
            POINTS: torch.zeros(server.clients, width, dtype=torch.float64),
            COMMON: torch.zeros(width, dtype=torch.float64),
            SCALES: torch.ones(len(sizes), dtype=torch.float64),
        }
        phase = GATHERING if server.clients > 1 and self._latest(server) + 1 < server.rounds else SETTLED
        numbers = {PHASE: phase, ASKED: 0.0, ROUND: 0.0, NOW: 0.0, AGREED: 0.0}
        return ServerState({**state.tensors, **known}, {**state.numbers, **numbers})

    def download(self, state: ServerState, client: ClientId) -> Message:
        """Message of the base with the model of the client's group; when it is asked, with a question."""
        own, phase = super().download(state, client), state.numbers[PHASE]
        asked = Message()
        if phase == ASKING and state.tensors[LEVELS][client, 0] >= 0 and state.tensors[ANSWERS][client, 0, 0] == UNTOLD:
            asked = question(under(START, state.tensors), _candidates(state, client), state.numbers[ROUND])
        elif _is_to_look(state)[client]:
            models = {group: select(of_group(state, group).tensors, self.base.shared) for group in _numbers(state)}
            mine = models[int(state.tensors[GROUP][client])]
            others = {i: Candidate(None, 0.0, None if of is mine else of) for i, of in enumerate(models.values())}
            asked = question(mine, others, state.numbers[NOW])
        numbers = {**own.numbers, **asked.numbers, WATCH: float(phase != SETTLED)}
        return Message({**own.tensors, **asked.tensors}, numbers)

    def aggregate(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
        """Add up what the updates tell of the clients, form groups when it is time, and aggregate in each one."""
        told = ServerState({**state.tensors, **self.learned(server, state, uploads)}, state.numbers)
        phase, asked, round = (state.numbers[name] for name in (PHASE, ASKED, ROUND))
        told = _with_answers(told, uploads) if phase == ASKING else told
        if is_answered := phase == ASKING and self._is_enough(server, told):
            told = _with_found(told)
        after = super().aggregate(server, told, uploads)
        tensors = {**select(told.tensors, ("kin.", f"{GROUP}0.")), **after.tensors}
        if is_answered:
            divided, could = bool(after.tensors[GROUP].any()), _could_divide(told)
            asked += could
            again = not could or (_may_divide(told) and asked < QUESTIONS)
            phase = GATHERING if again and not divided else SETTLED
            tensors = {name: of for name, of in tensors.items() if not name.startswith(OF_QUESTION)}
        if phase == GATHERING and self._is_time(server, told, uploads):
            phase, round, tensors = ASKING, server.round, {**tensors, **self._tree(server, told, uploads)}
        tensors |= self._looks(server, state, uploads, tensors[GROUP])
        numbers = {PHASE: phase, ASKED: asked, ROUND: round, NOW: server.round, AGREED: told.numbers[AGREED]}
        return ServerState(tensors, {**after.numbers, **numbers})

    def learned(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensors:
        """Return the clients' mean deviations, with what is needed to compare a newcomer.

        The deviation of client i in a round is the concatenation of (u_in - ū_n) / s_n over the weight tensors n, with
        the mean ū_n of u_in over the m clients in the round, and ``s_n² = 1 - |ū_n|²``, the mean of ``|u_in - ū_n|²``:
        all tensors count alike, whatever their sizes and the clients' step lengths. A newcomer is compared with the
        mean of the last round in which all clients had common weights.
        """
        known = {name: state.tensors[name] for name in (POINTS, ROUNDS, COMMON, SCALES)}
        ids, divided = [id for id in uploads if not state.tensors[GROUP][id]], state.tensors[GROUP].any()
        if not divided and (state.numbers[PHASE] == SETTLED or len(ids) < 2):
            return known
        points, rounds, start = known[POINTS].clone(), known[ROUNDS].clone(), of_group(state, 0)
        common, scales = known[COMMON], known[SCALES]
        if not divided:
            mean, scales = self._mean_and_scales(server, start, [uploads[id] for id in ids])
            common = self._hashed(server, mean, scales)
        for id in ids:
            deviation = self._hashed(server, self._units(server, start, uploads[id]), scales) - common
            rounds[id] += 1
            points[id] += (deviation - points[id]) / rounds[id]
        return {POINTS: points, ROUNDS: rounds, COMMON: common, SCALES: scales}

    def _mean_and_scales(
        self, server: Server, start: ServerState, uploads: Sequence[Message]
    ) -> tuple[Tensors, Tensor]:
        """Return the mean ū_n of each weight tensor's u_in over some clients, and the scales s_n."""
        mean: Tensors = {}
        for upload in uploads:
            for name, unit in self._units(server, start, upload).items():
                part = unit.div_(len(uploads))
                mean[name] = mean[name].add_(part) if name in mean else part
        return mean, torch.stack([1 - of.square().sum() for of in mean.values()]).clamp(min=TINY).sqrt()

    def regrouped(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensor:
        """Form the groups in which the clients do best, let strays change to theirs, and admit newcomers."""
        groups, phase = state.tensors[GROUP].clone(), state.numbers[PHASE]
        if phase == ASKING and self._is_enough(server, state) and self._is_settled(server, state):
            groups = state.tensors[BEST if state.numbers[AGREED] >= ENOUGH else FOUND].clone()
        if (numbers := _numbers(state)) and (told := self._told(state, uploads)):
            own = torch.searchsorted(torch.tensor(numbers), groups[[*told]])
            _, apart, errors = torch.stack([*told.values()], dim=1).numpy()
            groups[[*told]] = torch.tensor(numbers)[strays(own.numpy(), apart, errors)]
        if means := _means(groups, state.tensors[POINTS]):
            came = (groups == 0) & (state.tensors[ROUNDS] > 0)
            for id in came.nonzero().flatten().tolist():
                groups[id] = _nearest(state.tensors[POINTS][id], means)
        return groups

    def _tree(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> Tensors:
        """Return the cluster of each client at each level, and the mean models of the finest clusters in this round.

        Level 0 is the cluster of all clients. A client that has yet to take part has -1.

        Args:
            server: Server in this round.
            state: State before the round, with what was learned in it.
            uploads: Usable uploads by client.
        """
        known, start = state.tensors[ROUNDS] > 0, of_group(state, 0)
        tree = torch.from_numpy(kin_tree(state.tensors[POINTS][known].numpy(), self.most))
        levels = torch.full((server.clients, tree.shape[1]), -1)
        levels[known] = tree
        weights = torch.zeros(server.clients, dtype=torch.float64)
        sent = [id for id in uploads if known[id]]
        for id in sent:
            weights[id] = uploads[id].numbers["samples"]
        tensors: Tensors = {}
        for leaf in levels[sent, -1].unique().tolist():
            ids = [id for id in sent if levels[id, -1] == leaf]
            shares = (weights[ids] / weights[ids].sum()).tolist()
            mean = mean_of(shares, (trained(server, self.base, start, uploads[id]) for id in ids))
            tensors |= {f"{LEAF}{leaf}.{name}": tensor for name, tensor in mean.items()}
        tensors |= {START + name: start.tensors[name] for name in mean}
        told = torch.zeros(server.clients, 3, tree.shape[1], dtype=torch.float64)
        told[:, 0] = UNTOLD
        return {**tensors, ANSWERS: told, LEVELS: levels, WEIGHTS: weights}

    def _is_enough(self, server: Server, state: ServerState) -> bool:
        """Return True if half of the clients in the tree have answered, or there is no more time to ask."""
        known = state.tensors[LEVELS][:, 0] >= 0
        answered = state.tensors[ANSWERS][:, 0, 0] != UNTOLD
        return bool(2 * answered.sum() >= known.sum()) or server.round >= 2 * server.rounds // 3

    def _is_settled(self, server: Server, state: ServerState) -> bool:
        """Return True if two questions in a row have found the same groups, or there is no other question."""
        is_last = state.numbers[ASKED] + 1 >= QUESTIONS or server.round >= 2 * server.rounds // 3
        return state.numbers[AGREED] >= SAME or is_last or not _may_divide(state)

    def _told(self, state: ServerState, uploads: Mapping[ClientId, Message]) -> dict[ClientId, Tensor]:
        """Return what is believed of the answers of clients that were asked about the other groups, 3×G each."""
        asked = [id for id in uploads if _is_to_look(state)[id]]
        answers = {id: read_answer(uploads[id].numbers, len(_numbers(state))) for id in asked}
        return {id: answer.clamp(-LARGEST, LARGEST) for id, answer in answers.items() if answer is not None}

    def _looks(
        self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message], groups: Tensor
    ) -> Tensors:
        """Return how often each client was asked in a group, and in which round last; or since when it is there."""
        asked = torch.zeros_like(groups, dtype=torch.bool)
        asked[[*uploads]] = _is_to_look(state)[[*uploads]]
        changed = asked | (groups != state.tensors[GROUP])
        since = torch.where(changed, server.round, state.tensors[SINCE])
        return {SINCE: since, LOOKS: state.tensors[LOOKS] + asked}

    def greeting(self, state: ServerState) -> Message:
        """Message with the last common model."""
        return self.base.download(of_group(state, 0), 0)

    def group_of_new(self, server: Server, state: ServerState, upload: Message) -> int:
        """Return the group whose mean deviation is nearest to that of the new client."""
        units = self._units(server, of_group(state, 0), upload)
        point = self._hashed(server, units, state.tensors[SCALES]) - state.tensors[COMMON]
        means = _means(state.tensors[GROUP], state.tensors[POINTS])
        return _nearest(point, means) if means else 0

    def pictures(self, state: ServerState) -> Mapping[str, Picture]:
        """Return the cosines of the clients' deviations while all had common weights, N×N; NaN for unknown ones."""
        points = functional.normalize(state.tensors[POINTS])
        cosines = points @ points.T
        unknown = state.tensors[POINTS].norm(dim=1) == 0
        cosines[unknown] = cosines[:, unknown] = torch.nan
        return {"kin": Picture(cosines, "Similarity of updates", "clients", "clients", similarity=True)}

    def _latest(self, server: Server) -> int:
        """Return the round after which the clients are asked for the first time at the latest."""
        return max(self.first, math.ceil(server.rounds / 3))

    def _is_time(self, server: Server, state: ServerState, uploads: Mapping[ClientId, Message]) -> bool:
        rounds = state.tensors[ROUNDS]
        due = rounds.double().mean().item() >= self.first or server.round >= self._latest(server)
        return due and bool((rounds[[*uploads]] > 0).sum() > 1)

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
        parts = [tensor / scale for tensor, scale in zip(tensors.values(), scales, strict=True)]
        entries = sum(map(len, parts))
        if entries <= self.sketch:
            return torch.cat(parts)
        places, signs = _places_and_signs(server.seed, entries, self.sketch)
        hashed, begin = torch.zeros(self.sketch, dtype=torch.float64), 0
        for part in parts:  # one after the other: a copy of all of them takes more time than the sums
            end = begin + len(part)
            hashed.index_add_(0, places[begin:end], part.mul_(signs[begin:end]))
            begin = end
        return hashed

    # -- at the client -------------------------------------------------------------------------------------------------

    def update(self, client: Client, message: Message, state: ClientState) -> tuple[Message, ClientState]:
        """Train as the base does; answer if asked, and keep what was trained while there may be a question."""
        told, own = answers(self.base, client, message, state), without_question(message)
        upload, after = self.base.update(client, own, without_trained(state))
        upload = replace(upload, numbers={**upload.numbers, **told})
        if message.numbers.get(WATCH):
            after = with_trained(after, trained(client, self.base, own, upload), client.round)
        return upload, after

    def evaluated(self, client: Client, message: Message, state: ClientState) -> dict[str, Tensors]:
        """Models of the client with the model of its group."""
        return super().evaluated(client, without_question(message), without_trained(state))


def _candidates(state: ServerState, client: ClientId) -> dict[int, Candidate]:
    """Return the cluster of a client at each level that has another one than the level before, by level.

    Where at most one client has sent a model, the start is tested instead: without the client itself nothing would be
    left for one part, and the others would see a model of more noise.
    """
    levels, weights = state.tensors[LEVELS], state.tensors[WEIGHTS]
    candidates: dict[int, Candidate] = {}
    before = levels[:, 0] >= 0
    for level in range(levels.shape[1]):
        members = (levels[:, level] == levels[client, level]) & before
        rest, sent = before & ~members, weights > 0
        if not level or ((sent & members).any() and (sent & rest).any()):
            single = (sent & members).sum() <= 1
            share = 0.0 if single else (weights[client] / weights[members].sum()).item()
            others = _mean(state, rest) if (sent & rest).sum() > 1 else None
            candidates[level] = Candidate(None if single else _mean(state, members), share, others)
            before = members
    return candidates


def _mean(state: ServerState, members: Tensor) -> Tensors:
    """Return the mean model of some clients, N of True or False, from those of the finest clusters."""
    finest, weights = state.tensors[LEVELS][:, -1], state.tensors[WEIGHTS]
    leaves = finest[members & (weights > 0)].unique().tolist()
    sizes = torch.stack([weights[finest == leaf].sum() for leaf in leaves])
    return mean_of((sizes / sizes.sum()).tolist(), [under(f"{LEAF}{leaf}.", state.tensors) for leaf in leaves])


def _with_answers(state: ServerState, uploads: Mapping[ClientId, Message]) -> ServerState:
    """Return the state with what clients tell who are asked, as far as it is believed."""
    told = state.tensors[ANSWERS].clone()
    for id, upload in uploads.items():
        answer = read_answer(upload.numbers, told.shape[2])
        if answer is not None and state.tensors[LEVELS][id, 0] >= 0:
            most = torch.tensor([upload.numbers["samples"], 1.0, 1.0], dtype=torch.float64)[:, None] * LARGEST
            told[id] = answer.clamp(-most, most)
    return replace(state, tensors={**state.tensors, ANSWERS: told})


def _best_cut(state: ServerState, sure: float = SURE) -> Tensor:
    """Return the best cluster of each client that has taken part."""
    levels, told = state.tensors[LEVELS], state.tensors[ANSWERS]
    known = levels[:, 0] >= 0
    losses, apart, errors = told[known].unbind(1)
    return torch.from_numpy(best_cut(levels[known].numpy(), losses.numpy(), apart.numpy(), errors.numpy(), sure))


def _with_found(state: ServerState) -> ServerState:
    """Return the state with the groups that the answers speak for, N, from 1; 0 for all if there is but one.

    They become the best ones if they agree with those of the question before as well as any others did.
    """
    known, kin, before = state.tensors[LEVELS][:, 0] >= 0, _best_cut(state), state.tensors[FOUND]
    found, best, agreed = torch.zeros_like(before), state.tensors[BEST], state.numbers[AGREED]
    if kin.any():
        found[known] = 1 + kin
    both = (found > 0) & (before > 0)
    agreement = adjusted_rand_index(before[both].tolist(), found[both].tolist()) if both.any() else 0.0
    if agreement >= agreed:
        best, agreed = found, agreement
    return ServerState({**state.tensors, FOUND: found, BEST: best}, {**state.numbers, AGREED: agreed})


def _numbers(state: ServerState) -> list[int]:
    """Return the numbers of the groups after a division."""
    return [group for group in state.tensors[GROUP].unique().tolist() if group]


def _is_to_look(state: ServerState) -> Tensor:
    """Return True for each client that is asked in the next round whether another group suits it better, N."""
    groups, since, looks = (state.tensors[name] for name in (GROUP, SINCE, LOOKS))
    return (groups > 0) & (looks < MOST_LOOKS) & (state.numbers[NOW] + 1 >= since + WAIT)


def _could_divide(state: ServerState) -> bool:
    """Return True if clients on both sides of the first division have sent models, so that they could be asked."""
    levels, sent = state.tensors[LEVELS], state.tensors[WEIGHTS] > 0
    return levels.shape[1] == 1 or len(levels[sent, 1].unique()) > 1


def _may_divide(state: ServerState) -> bool:
    """Return True if clients have a lower loss in smaller clusters that prefer themselves, however little."""
    return bool(_best_cut(state, sure=0.0).any())


def _means(groups: Tensor, points: Tensor) -> dict[int, Tensor]:
    """Return the mean deviation of each group but that of the clients that have yet to take part."""
    return {group: points[groups == group].mean(dim=0) for group in groups[groups > 0].unique().tolist()}


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
