"""Models with ``sequenceBatching``: their handlers keep state from one request to the next.

TorchServe gives each sequence a worker of its own. Here such a model has one worker in all, so each
request finds the state of its sequence, and requests are served in the order of their arrival. Each
goes alone: two requests of one sequence in a batch would begin with the same state, and a batch
that is run again because of another request would change the state twice.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kserve_torch.messages import Request, fresh_id
from kserve_torch.runtime.context import sequence_header

log = logging.getLogger(__name__)


class Sequences:
    """Keeps the sequences of one model version, ``label`` in the log, together."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._warned = False

    def bounds(self, minimum: int, maximum: int) -> tuple[int, int]:
        """The given bounds on workers, reduced to one."""
        if maximum > 1 and not self._warned:
            self._warned = True
            log.warning(
                "%s: sequenceBatching: using one worker instead of up to %d, because a sequence's "
                "state is in the worker that served its first request",
                self._label,
                maximum,
            )
        return min(minimum, 1), min(maximum, 1)

    def named(self, request: Request) -> Request:
        """The request, with a fresh sequence id if its client gave none (CONTRACT C4)."""
        header = sequence_header("id")
        given = (request.headers, request.parameters)
        if any(said.get(name) for said in given for name in (header, header.lower())):
            return request
        return replace(request, headers={**request.headers, header: f"ts-seq-{fresh_id()}"})
