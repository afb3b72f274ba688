from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2 as pb

from kserve_torch.grpc import reflection
from kserve_torch.grpc.protos import open_inference_pb2

from .serving import Serving


def definitions(response: Any) -> DescriptorPool:
    """A pool of what a client learns from one response."""
    pool = DescriptorPool()
    files = [FileDescriptorProto.FromString(f) for f in response.file_descriptor_proto]
    known: set[str] = set()
    while files:
        ready = [file for file in files if known.issuperset(file.dependency)]
        assert ready, "an import is missing"
        for file in ready:
            pool.Add(file)
            known.add(file.name)
            files.remove(file)
    return pool


async def ask(serving: Serving, name: str, port: int | None, **question: Any) -> Any:
    stub = serving.stub(reflection.SERVICE, port, name)
    requests = iter([pb.ServerReflectionRequest(**question)])
    (response,) = [response async for response in stub.ServerReflectionInfo(requests)]
    return response


@pytest.mark.parametrize("name", reflection.NAMES)
async def test_services_are_listed(serving: Serving, name: str) -> None:
    port = serving.settings.grpc_port
    response = await ask(serving, name, port, list_services="")
    services = {service.name for service in response.list_services_response.service}
    assert services == {
        "inference.GRPCInferenceService",
        "org.pytorch.serve.grpc.openinference.GRPCInferenceService",
        "grpc.health.v1.Health",
        *reflection.NAMES,
    }


@pytest.mark.parametrize("name", reflection.NAMES)
async def test_every_service_of_every_port_is_defined(serving: Serving, name: str) -> None:
    settings = serving.settings
    for port in (
        settings.grpc_port,
        settings.grpc_inference_port,
        settings.grpc_management_port,
    ):
        listed = await ask(serving, name, port, list_services="")
        for service in listed.list_services_response.service:
            response = await ask(serving, name, port, file_containing_symbol=service.name)
            pool = definitions(response.file_descriptor_response)
            assert pool.FindServiceByName(service.name).methods


async def test_methods_are_found_by_their_full_names(serving: Serving) -> None:
    port, service = serving.settings.grpc_port, "inference.GRPCInferenceService"
    for name in (service, f"{service}.ModelInfer"):
        response = await ask(serving, reflection.NAMES[0], port, file_containing_symbol=name)
        assert definitions(response.file_descriptor_response).FindServiceByName(service)
    response = await ask(serving, reflection.NAMES[0], port, file_containing_symbol=f"{service}.X")
    assert response.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_a_client_can_infer_with_what_it_learned(serving: Serving) -> None:
    port, service = serving.settings.grpc_port, "inference.GRPCInferenceService"
    response = await ask(serving, reflection.NAMES[0], port, file_containing_symbol=service)
    pool = definitions(response.file_descriptor_response)
    learned = pool.FindServiceByName(service)
    stub = serving.stub(learned, port)
    message = GetMessageClass(learned.methods_by_name["ModelInfer"].input_type)
    request = message(model_name="echo", raw_input_contents=[b"\x05"])
    request.inputs.add(name="x", datatype="INT8", shape=[1])
    answer = await stub.ModelInfer(request)
    assert answer.DESCRIPTOR.full_name == "inference.ModelInferResponse"
    assert list(answer.raw_output_contents) == [b"\x05"]


def test_a_repackaged_file_keeps_nothing_of_the_old_package() -> None:
    proto = reflection.repackaged(open_inference_pb2.DESCRIPTOR, "inference")
    assert proto.package == "inference"
    assert b"org.pytorch" not in proto.SerializeToString()
