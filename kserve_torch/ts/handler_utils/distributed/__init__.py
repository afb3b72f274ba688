"""``ts.handler_utils.distributed``."""
