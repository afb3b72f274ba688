"""Bytes to values and back, for every protocol; nothing here does I/O, waits or knows a handler.

::

    body -> content -> v1 | v2 | native -> rows, tensors -> handler
    body <-          v1 | v2 | native <- results <- handler

`datatypes` and `tensors` know arrays, `rows` knows what a handler wants to see of them, `results`
what it gives back.
"""
