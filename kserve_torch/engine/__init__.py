"""From a request to its answer: queue, batch, worker; nothing here knows a protocol or a handler.

::

    intake -> lane (window) -> worker (isolation) -> instance
                                 ^ pool: as many as asked for, replaced when they die or hang
"""
