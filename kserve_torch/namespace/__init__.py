"""What each archive's code has to itself, although all share one interpreter.

Its modules, its ``sys.path``, its working directory, the packages that it brings along, and its
figures.
"""
