"""``ts.handler_utils.preprocess``."""
