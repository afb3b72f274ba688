"""``ts.torch_handler.request_envelope``: service envelopes as classes around an entry point.

The server maps protocols itself; these are for handlers and tests that wrap an entry point.
"""
