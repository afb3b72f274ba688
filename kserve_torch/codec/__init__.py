"""Bytes to values and back, for every protocol; nothing here does I/O, waits or knows a handler.

::

    body -> content -> v1 | v2 | native -> rows, tensors -> handler
    body <-          v1 | v2 | native <- results <- handler

`datatypes` and `tensors` are about arrays, `rows` about what a handler gets of them, `results`
about what it returns, `replies` about the status and headers that it sets.
"""
