"""Flower's app at a site: it gives the letters to the `Site` of its node."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kinfed.flower.letters import Letter
from kinfed.flower.site import Site

__all__ = ["app"]

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    letter = Site.of_node(context.node_config).answer(Letter.of_record(message.content))
    return Message(letter.record(), reply_to=message)


app.query()(_answer)
app.query("keep")(_answer)
for action in ("update", "evaluate", "test"):
    app.train(action)(_answer)
