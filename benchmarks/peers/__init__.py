"""The servers that are compared, and where each can be reached.

Every peer is one program of this package, started with the peer's own interpreter::

    python -m benchmarks.peers.<name> --store DIR --port N

It serves the archives of the store until SIGTERM, most in batches of up to `BATCH_ROWS`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.venv import cache

#: Most rows of a batch, and milliseconds that its first row waits for more, for peers with both.
BATCH_ROWS, BATCH_DELAY_MS = 16, 1

#: Kinds of requests: v1 predictions and explanations, v2 tensors as JSON and as binary data.
V1_PREDICT, V1_EXPLAIN, V2_JSON, V2_BINARY = "v1:predict", "v1:explain", "v2:json", "v2:binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One server to be measured.

    Attributes:
        name: the program's name in this package.
        title: the server's display name.
        packages: what its own environment needs beside torch; without any it runs in ours.
        routes: the URL path, with ``{model}`` in it, per kind of request that it can answer.
        many: whether the program serves several models at once.
    """

    name: str
    title: str
    routes: Mapping[str, str]
    packages: tuple[str, ...] = field(default=())
    many: bool = False

    @property
    def environment(self) -> Path:
        """Its virtual environment, which depends on the packages and on our Python."""
        text = "\n".join((*self.packages, sys.prefix))
        return cache() / "peers" / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def python(self) -> Path:
        """The interpreter that runs it."""
        return self.environment / "bin" / "python" if self.packages else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Whether ``python -m benchmarks.peers setup`` has been here."""
        return not self.packages or (self.environment / "complete").exists()


_V1 = {V1_PREDICT: "/v1/models/{model}:predict"}
_EXPLAIN = {V1_EXPLAIN: "/v1/models/{model}:explain"}
_V2 = {V2_JSON: "/v2/models/{model}/infer"}
_BINARY = {V2_BINARY: "/v2/models/{model}/infer"}

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="ours",
            title="kserve_torch",
            routes={**_V1, **_EXPLAIN, **_V2, **_BINARY},
            many=True,
        ),
        Peer(
            name="torchserve",
            title="TorchServe",
            routes={**_V1, **_EXPLAIN},
            packages=("torchserve==0.12.0", "nvgpu"),
            many=True,
        ),
        Peer(name="kserve", title="plain kserve", routes={**_V1, **_V2, **_BINARY}),
        Peer(
            name="mlserver",
            title="MLServer",
            routes=_V2,
            # Its workers rely on an event loop that newer uvloops no longer create.
            packages=("mlserver==1.7.1", "uvloop<0.22"),
        ),
        Peer(name="litserve", title="LitServe", routes=_V1, packages=("litserve==0.2.19",)),
        Peer(name="mosec", title="mosec", routes=_V1, packages=("mosec==0.9.8",)),
    )
}
