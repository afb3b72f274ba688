import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.timestamp_pb2 import Timestamp

from kserve_torch.grpc.protos import inference_pb2
from kserve_torch.namespace import protobuf

from ..makers import write
from .made import Make

TIME = "google.protobuf.Timestamp"
FILES = {TIME: ("google/protobuf/timestamp.proto", "google.protobuf.timestamp_pb2")}


def generated(path: str, message: str, *fields: str, **parts: str) -> str:
    """What protoc makes of the file ``path`` for one message.

    Args:
        path: without its ending; the package's name too, unless ``message`` has one.
        message: its name.
        fields: its texts.
        parts: full names of messages by the fields that have them.
    """
    package, _, name = message.rpartition(".")
    file = FileDescriptorProto(name=f"{path}.proto", package=package or path, syntax="proto3")
    kind = file.message_type.add(name=name)
    imports = ""
    for number, field in enumerate((*fields, *parts), 1):
        added = kind.field.add(name=field, number=number)
        added.label, added.type = added.LABEL_OPTIONAL, added.TYPE_STRING
        if field in parts:
            added.type, added.type_name = added.TYPE_MESSAGE, f".{parts[field]}"
            other = parts[field].partition(".")[0]
            imported, module = FILES.get(parts[field], (f"{other}.proto", f"{other}_pb2"))
            file.dependency.append(imported)
            imports += f"import {module}\n"
    return f"""{imports}
from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf.internal import builder as _builder
DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile({file.SerializeToString()!r})
_builder.BuildMessageAndEnumDescriptors(DESCRIPTOR, globals())
_builder.BuildTopDescriptorsAndMessages(DESCRIPTOR, {f"{path}_pb2"!r}, globals())
"""


def fields(message: Any) -> list[str]:
    return [field.name for field in message.DESCRIPTOR.fields]


def test_versions_of_a_model_have_each_its_own_messages(make: Make) -> None:
    whole = generated("whole", "Whole", "name", unit="unit.Unit", at=TIME)
    old = make("old", whole_pb2=whole, unit_pb2=generated("unit", "Unit", "a"))
    new = make("new", whole_pb2=whole, unit_pb2=generated("unit", "Unit", "a", "b"))
    for version, known in ((old, ["a"]), (new, ["a", "b"]), (old, ["a"])):
        message = version.import_module("whole_pb2").Whole(name="x")
        assert fields(message.unit) == known
        message.unit.CopyFrom(version.import_module("unit_pb2").Unit(a="1"))
        message.at.FromSeconds(5)
        received = message.FromString(message.SerializeToString())
        assert (received.unit.a, received.at.ToSeconds()) == ("1", 5)


def test_instances_of_one_archive_share_theirs(make: Make) -> None:
    text = generated("timed", "Timed", at=TIME)
    text += "FOUND = _descriptor_pool.Default().FindFileByName('timed.proto')"
    for module in [make("timed", timed_pb2=text).import_module("timed_pb2") for _ in range(2)]:
        assert module.DESCRIPTOR is module.FOUND
        assert module.DESCRIPTOR is descriptor_pool.Default().FindFileByName("timed.proto")
        assert module.Timed(at=Timestamp(seconds=5)).at == Timestamp(seconds=5)


def test_an_archive_may_bring_the_definitions_of_torchserves_services(make: Make) -> None:
    text = generated("inference", inference_pb2.TorchServeHealthResponse.DESCRIPTOR.full_name, "h")
    module = make("client", inference_pb2=text).import_module("inference_pb2")
    response = module.TorchServeHealthResponse(h="Healthy").SerializeToString()
    assert inference_pb2.TorchServeHealthResponse.FromString(response).health == "Healthy"


def test_packages_of_the_environment_may_come_after_those_of_an_archive(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make("first", late_pb2=generated("late", "Late", "a"))
    found = [archive.import_module("late_pb2")]
    names = ["packed_b.late_pb2", "packed_c.late_pb2", "late_pb2"]
    files = [f"{name.replace('.', '/')}.py" for name in names]
    texts = [generated("late", "Late", field) for field in "bcd"]
    write(tmp_path / "environment", dict(zip(files, texts, strict=True)))
    monkeypatch.syspath_prepend(str(tmp_path / "environment"))
    for name in names:
        found.append(importlib.import_module(name))
        monkeypatch.delitem(sys.modules, name)
    assert [fields(module.Late) for module in found] == [["a"], ["b"], ["c"], ["d"]]


def test_a_closed_archives_definitions_are_let_go(make: Make) -> None:
    archive = make("one", one_pb2=generated("one", "One", "a"))
    archive.import_module("one_pb2")
    assert archive.name in protobuf._definitions
    archive.close()
    assert archive.name not in protobuf._definitions


def test_what_is_no_file_is_refused(make: Make) -> None:
    text = generated("broken", "Broken", "a")
    broken = make("broken", broken_pb2=text.replace("proto3", "proto9"))
    with pytest.raises(TypeError, match="proto9"):
        broken.import_module("broken_pb2")


def test_other_code_has_protobufs_own_table() -> None:
    table = ModuleType(protobuf._MODULE)
    table.Default = descriptor_pool.Default  # type: ignore[attr-defined]
    protobuf._separate(table)
    assert type(table.Default()).__name__ == "DescriptorPool"  # type: ignore[attr-defined]
