"""``ts.torch_handler.unit_tests``: what TorchServe lends to tests of handlers."""
