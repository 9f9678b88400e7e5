"""Flower's app at a site: it gives the letters to the `Site` of its node."""

from __future__ import annotations

import sys

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from kinfed.errors import InputError
from kinfed.flower.letters import Letter
from kinfed.flower.site import Site

__all__ = ["app"]

app = ClientApp()


def _answer(message: Message, context: Context) -> Message:
    try:
        letter = Site.of_node(context.node_config).answer(Letter.of_record(message.content))
    except (InputError, ValueError) as error:
        print(f"kinfed: {error}", file=sys.stderr)  # in the log of the node; it may name a file
        letter = Letter({"failure": "its node is not set up; its log says why"})
    return Message(letter.record(), reply_to=message)


app.query()(_answer)
app.query("keep")(_answer)
for action in ("update", "evaluate", "test"):
    app.train(action)(_answer)
