"""A recording of every byte between two nodes and a SuperLink, searched for what must not leave a site.

``python benchmarks/flower_bytes.py [--work DIR] [--only METHOD]... [--twice]``

The nodes are connected through a recorder that has the server's key: it decrypts what they send and get, and passes it
on, encrypted again. The sites have folders of PNG files whose pixels are noise, so that nothing of them can be in the
recording by chance. Looked for are rows of pixels, as bytes and as normalised numbers, parts of the files themselves,
labels, names of files and folders, and every tensor that a method keeps at a site. What must be in the recording is
looked for as well: the server's weights after the last round, and the names of the sites.

With ``--twice``, the recorder sends every answer of the nodes a second time, after the first round of a run of FedPer;
what the server tells is printed, and whether it ends with the state of a run with single answers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import ssl
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import kinfed
from flower import DEADLINE, left, rounds
from kinfed.experiment.configure import configure
from kinfed.flower.deploy import SITES
from kinfed.flower.link import Link, free_port
from kinfed.methods import Message, make_method
from kinfed.models import read_tensors
from kinfed.testing import same, small_runtime, trial_fields

CLASSES = ("benign", "malignant")
NAMES = ("north", "south")
SIZE = 16  # pixels of a side
FIELDS: dict[str, Any] = {
    "model": "tiny_cnn", "rounds": 2, "evaluate_every": 1, "lr": 0.05, "batch_size": 8, "ft_epochs": 0,
    "linear_probe": False, "knn_every": 0,
}  # fmt: skip
KEEPING = [
    "fedavg", "scaffold", "moon", "fedcka", "fedper", "fedrep", "fedcrc", "ditto", "fedproto", "lg_fedavg", "fedu",
    "fedema", "hetero_ssfl", "local", "local_ssl",
]  # fmt: skip


class Recorder:
    """A server between nodes and a SuperLink, with the server's key, that keeps all bytes of both directions.

    Args:
        folder: Folder with ``ca.crt``, ``server.pem`` and ``server.key``.
        address: Host and port of the SuperLink.

    Attributes:
        address: Host and port at which the nodes connect.
        streams: Bytes of each connection from its node, and to it.
        twice: True to send each answer of a node a second time.
        said: What the SuperLink said to the second ones, counted.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.streams: list[tuple[bytearray, bytearray]] = []
        self.twice = False
        self.said: Counter[str] = Counter()
        host, port = address.split(":")
        self._to = host, int(port)
        self._accepts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._accepts.load_cert_chain(folder / "server.pem", folder / "server.key")
        self._connects = ssl.create_default_context(cafile=folder / "ca.crt")

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Context manager during which nodes can connect."""
        loop = asyncio.new_event_loop()
        host, port = self.address.split(":")
        loop.run_until_complete(asyncio.start_server(self._passed_on, host, int(port), ssl=self._accepts))
        repeating = loop.create_task(self._send_twice())
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            repeating.cancel()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()

    async def _passed_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_reader, on_writer = await asyncio.open_connection(*self._to, ssl=self._connects)
        up, down = bytearray(), bytearray()
        self.streams.append((up, down))
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pump(reader, on_writer, up), _pump(on_reader, writer, down))

    async def _send_twice(self) -> None:
        """Send every answer in the recording again, soon after the first time."""
        sent: set[tuple[int, int]] = set()
        while True:
            await asyncio.sleep(0.3)
            for at, (up, _) in enumerate(self.streams if self.twice else []):
                for start, request in answers(bytes(up)):
                    if (at, start) not in sent:
                        sent.add((at, start))
                        reader, writer = await asyncio.open_connection(*self._to, ssl=self._connects)
                        writer.write(request)
                        self.said[(await reader.readline()).decode().strip()] += 1
                        writer.close()

    def recording(self) -> bytes:
        """Return all bytes.

        Raises:
            ValueError: If some were compressed or cut into pieces, so that nothing could be found in them.
        """
        found = b"\n".join(bytes(one) for stream in self.streams for one in stream)
        if b"content-encoding:" in found.lower() or b"transfer-encoding:" in found.lower():
            raise ValueError("the connection does not carry the bytes as they are")
        return found


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while found := await reader.read(1 << 16):
            record += found
            writer.write(found)
            await writer.drain()
        writer.close()


def answers(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each whole request of a node that pushes an answer, with its place in the stream."""
    for found in re.finditer(rb"POST /v1/fleet/push-\S+ HTTP.+?\r\n\r\n", stream, re.DOTALL):
        size = re.search(rb"content-length: (\d+)", found[0], re.IGNORECASE)
        end = found.end() + int(size[1]) if size else found.end()
        if end <= len(stream):
            yield found.start(), stream[found.start() : end]


def write_images(folder: Path, stream: np.random.Generator, files: int) -> None:
    """Write PNG files of noise into a folder for each split and class, with names that say who was photographed."""
    for split, name in itertools.product(("train", "test"), CLASSES):
        (folder / split / name).mkdir(parents=True)
        for _ in range(files):
            pixels = stream.integers(0, 256, (SIZE, SIZE), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / split / name / f"patient-{stream.integers(2**60):015x}.png")


def canaries(folder: Path) -> dict[str, list[bytes]]:
    """Return what must not be in the recording, by what it is."""
    paths = sorted(folder.rglob("*.png"))
    images = [np.asarray(Image.open(path)) for path in paths]
    data = kinfed.data.load(str(folder))
    normalised = [split.normalise(split.inputs).numpy() for split in (data.train, data.test)]
    labels = [split.labels.numpy() for split in (data.train, data.test) if split.labels is not None]
    return {
        "rows of pixels": [row.tobytes() for image in images for row in image],
        "rows of normalised pixels": [row.tobytes() for split in normalised for row in split.reshape(-1, SIZE)],
        "parts of files": [path.read_bytes()[at : at + 24] for path in paths for at in (64, 128)],
        "labels": [
            *(split.astype(kind).tobytes() for split in labels for kind in ("int64", "uint8")),
            *(json.dumps(split.tolist())[1:-1].encode() for split in labels),
        ],
        "names of files and folders": [*(path.stem.encode() for path in paths), str(folder).encode()],
    }  # fmt: skip


def sent_too(name: str) -> set[str]:
    """Return the names of kept tensors that are part of the uploads, bit for bit: they may be in the recording."""
    method = make_method(name)
    runtime = small_runtime(
        make_method(name, trial_fields(type(method.unwrapped)) | trial_fields(type(method))), rounds=1
    )
    down = runtime.method.download(runtime.method.init(runtime.server(0)), 0)
    upload, kept = runtime.update(0, 1, down, Message())  # type: ignore[arg-type]
    sent = {tensor.numpy().tobytes() for tensor in upload.tensors.values()}
    return {name for name, tensor in kept.tensors.items() if tensor.numpy().tobytes() in sent}


def recorded(work: Path, methods: list[str], *, twice: bool = False) -> bytes:
    """Do a run or a comparison at two sites, perhaps with each answer twice, and return all that travelled."""
    stream = np.random.default_rng(0)
    for name in (*NAMES, "server"):
        write_images(work / name / "data", stream, 20)
    nodes = {name: {"name": name, **{it: str(work / name / it) for it in ("data", "state")}} for name in NAMES}
    fields = {
        **FIELDS,
        "methods": tuple(methods),
        "data": SITES,
        "partition": SITES,
        "clients": len(NAMES),
        "public": 16,
    }
    if twice:
        fields["rounds"] = 3
    if not any(make_method(name).requires.public_images for name in methods):
        del fields["public"]
    config = configure(fields, objects={SITES: None})
    with tempfile.TemporaryDirectory(prefix="kinfed-flower-") as folder, Link(Path(folder), nodes) as link:
        recorder = Recorder(Path(folder), link.address)
        with recorder.listening():
            for name, process in [*link.nodes.items()]:
                process.terminate()
                process.wait()
                link.start_node(name, "--superlink", recorder.address)
            journal = Path(folder) / "journal.jsonl"
            link.run({
                "config": config.toml(), "out": str((work / "out").absolute()), "sites": len(NAMES),
                "timeout": DEADLINE if twice else 600.0, "secret": "",
                "images": str(work / "server" / "data") if "public" in fields else "", "journal": str(journal),
            })  # fmt: skip
            for line in rounds(journal):
                print(f"round {line['round']}, refused: {line['refused'] or 'nobody'}", flush=True)
                recorder.twice = twice
        size = sum(len(up) + len(down) for up, down in recorder.streams)
        print(f"{size:,} bytes in {len(recorder.streams)} connections")
        if twice:
            print(f"what the SuperLink says to second answers: {dict(recorder.said)}")
        return recorder.recording()


def main() -> None:
    """Record, search, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/flower-bytes"), help="new folder of the sites")
    parser.add_argument("--only", action="append", default=[], help="method; repeatable [all that keep something]")
    parser.add_argument("--twice", action="store_true", help="send each answer of the nodes twice instead")
    asked = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    if asked.twice:
        for twice in (False, True):
            recorded(asked.work / f"twice-{twice}", ["fedper"], twice=twice)
        one, other = (last_state(asked.work / f"twice-{twice}" / "out") for twice in (False, True))
        print(f"the server's state is the same: {same(one, other)}")
        return
    travelled = recorded(asked.work, asked.only or KEEPING)
    print("| what | looked for | found |\n|---|---|---|")
    for name in NAMES:
        for what, those in canaries(asked.work / name / "data").items():
            print(f"| {what}, {name} | {len(those)} | {sum(one in travelled for one in those)} |")
    print("\n| method | server's tensors found | kept at the sites | found | of those, in uploads as well |")
    print("|---|---|---|---|---|")
    for run in sorted(path.parent for path in (asked.work / "out").rglob("metrics.jsonl")):
        method = json.loads((run / "sites.json").read_text())["run"]
        label = run.name.rpartition("-seed")[0] or (asked.only or KEEPING)[0]
        state = last_state(run)
        found = sum(_bytes(tensor) in travelled for tensor in state.values() if telling(tensor))
        kept = [
            (name, _bytes(tensor))
            for path in asked.work.glob(f"*/state/runs/{method}/memories/*/*.safetensors")
            for name, tensor in read_tensors(path)[0].items()
            if telling(tensor)
        ]
        there = [name for name, content in kept if content in travelled]
        may = sum(name in sent_too(label.partition(":")[0]) for name in there)
        print(f"| `{label}` | {found} of {sum(map(telling, state.values()))} | {len(kept)} | {len(there)} | {may} |")
    print(f"\nnames of the sites: {all(name.encode() in travelled for name in NAMES)}; processes left: {len(left())}")


def last_state(run: Path) -> dict[str, torch.Tensor]:
    """Return the server's state after the last round of a run."""
    return read_tensors(max((run / "checkpoints").glob("*.safetensors")))[0]


def telling(tensor: torch.Tensor) -> bool:
    """Return True if the bytes of a tensor cannot be found by chance: it has 8 numbers or more, not all alike."""
    return tensor.numel() >= 8 and bool((tensor != tensor.flatten()[0]).any())


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


if __name__ == "__main__":
    main()
