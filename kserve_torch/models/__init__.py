"""The models of one server and their versions: which there are, and how they come and go.

::

    registration -> registry -> reloads -> factory -> version -> the engine's queues
                    stock: what becomes of versions that leave
                    catalogue: names, versions, defaults

`v2`, `describe` and `report` are what all protocols share that speak of them.
"""
