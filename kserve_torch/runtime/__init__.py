"""A handler's surroundings: it is found, prepared, called, and kept from harming other code.

::

    loading -> entry -> instance: handle(data, context) -> one result per row
"""
