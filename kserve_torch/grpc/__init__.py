"""The gRPC edge: the open inference protocol, TorchServe's two services, health and reflection."""
