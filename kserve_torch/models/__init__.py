"""The models of one server and their versions: which there are, and how they come and go.

::

    registration -> registry -> reloads -> factory -> version -> the engine's queues
                    catalogue: names, versions, defaults
"""
