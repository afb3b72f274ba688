"""``--check``: loads the models and tries requests, without opening a port."""
