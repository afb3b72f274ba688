"""What the code of each archive has for itself in one interpreter.

Its modules, its ``sys.path``, its working directory, the packages that it brings along, and its
figures.
"""
