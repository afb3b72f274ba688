"""What a handler lives in: found, prepared, called, and kept from harming the rest of the process.

::

    preparation -> entry -> instance: handle(data, context) -> one result per row
"""
