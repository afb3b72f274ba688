"""``--check``: are these archives served here, and with which answers? Opens no port."""
