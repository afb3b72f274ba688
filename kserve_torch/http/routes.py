"""Which endpoint answers a path and method."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kserve_torch.errors import MethodNotAllowed
from kserve_torch.http.call import Answer, Call, Endpoint


class Routes:
    """Paths with their endpoints; the first path that matches decides.

    Args:
        routes: per path, a regular expression without a final slash, its endpoints by method.
        refused: the text about other methods.
    """

    def __init__(
        self,
        routes: Mapping[str, Mapping[str, Endpoint]],
        refused: str = "{method} is not allowed on {path}",
    ) -> None:
        self._routes = [(re.compile(path), methods) for path, methods in routes.items()]
        self._refused = refused

    async def __call__(self, call: Call) -> Answer | None:
        """The answer, or None if the path is not one of these.

        Raises:
            MethodNotAllowed: the path has other methods.
        """
        path = call.path.rstrip("/")
        for pattern, methods in self._routes:
            match = pattern.fullmatch(path)
            if match is not None:
                endpoint = methods.get(call.method)
                if endpoint is None:
                    text = self._refused.format(method=call.method, path=path)
                    raise MethodNotAllowed(text, methods)
                return await endpoint(call, **match.groupdict())
        return None


def question(endpoint: Endpoint) -> Mapping[str, Endpoint]:
    """The methods of a path that only tells something."""
    return {"GET": endpoint, "HEAD": endpoint}
