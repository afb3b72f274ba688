"""HTTP servers of others, as this server meets them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    """The URL of a server, which answers on a thread as long as the context."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def hosting(handler: Callable[..., BaseHTTPRequestHandler]) -> AbstractContextManager[str]:
    """`serving` of a server on 127.0.0.1 that answers with ``handler``."""
    return serving(ThreadingHTTPServer(("127.0.0.1", 0), handler))


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def hosting_files(folder: Path) -> AbstractContextManager[str]:
    """`hosting` of what is in a folder; all else is a 404."""
    return hosting(partial(_Files, directory=str(folder)))
