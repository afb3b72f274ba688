"""Token authorisation on KServe's routes; TorchServe's own routes check tokens themselves."""

from __future__ import annotations

from kserve_torch.http.exchange import Call
from kserve_torch.tokens import Access, Tokens


class Guard:
    """Requires a key of calls that run or change a model; probes and metadata stay open.

    Args:
        tokens: the keys, or None if token authorisation is off.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        self._tokens = tokens

    def __call__(self, call: Call) -> None:
        """Let the call pass.

        Raises:
            InvalidKey: it has no key, or not the one for this route.
        """
        if self._tokens is None or call.method != "POST":
            return
        if call.path.startswith("/v2/repository/models/"):
            self._tokens.check(Access.MANAGEMENT, call.headers.get("authorization"))
        elif call.path.startswith(("/v1/", "/v2/models/")):
            self._tokens.check(Access.INFERENCE, call.headers.get("authorization"))
