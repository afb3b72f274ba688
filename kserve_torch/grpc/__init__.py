"""The gRPC edge: the open inference protocol, TorchServe's two services, health and reflection."""

from kserve_torch.grpc.server import GrpcServer

__all__ = ["GrpcServer"]
