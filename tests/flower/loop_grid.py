"""Flower's grid in one process: each message is answered at once by the app of its node."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from kinfed.flower.client_app import app


class LoopGrid(Grid):
    """Grid of nodes with the given ``--node-config``; ``travelled`` has every byte that was pushed or pulled."""

    def __init__(self, nodes: Iterable[Mapping[str, str]]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.contexts = {
            100 + at: Context(run_id=1, node_id=100 + at, node_config=dict(node), state=RecordDict(), run_config={})
            for at, node in enumerate(nodes)
        }
        self.travelled: list[bytes] = []
        self._answers: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            id = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = id
            self._note(message)
            self._answers[id] = self.answered(message)
            ids.append(id)
        return ids

    def answered(self, message: Message) -> Message:
        try:
            return app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._answers.pop(id) for id in [*message_ids] if id in self._answers]
        for message in found:
            self._note(message)
        return found

    def _note(self, message: Message) -> None:
        if message.has_content():
            record: Any = message.content
            self.travelled += [str(record["about"]["json"]).encode(), bytes(record["tensors"]["file"].data)]

    def get_node_ids(self) -> list[int]:
        return [*self.contexts]

    # -- not used -----------------------------------------------------------------------------------------------------

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError
