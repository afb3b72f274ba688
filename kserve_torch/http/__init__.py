"""The HTTP edge: v1, v2, TorchServe's APIs, management, pages.

::

    protocol (one connection) -> whole | app (a `Call`) -> v1 | v2 | native | … (an `Answer`)
"""
