"""Answers each row with 1: what is left is the server."""


def handle(data, context):
    """Give 1 for each row; None is the call that initialises."""
    return None if data is None else [1] * len(data)
