import numpy as np
import pytest

from kserve_torch.codec.buffers import to_raw
from kserve_torch.codec.datatypes import DATATYPES
from kserve_torch.codec.tensors import to_typed
from kserve_torch.errors import HandlerError, InvalidInput
from kserve_torch.grpc import convert
from kserve_torch.grpc.protos import open_inference_pb2 as pb
from kserve_torch.messages import Tensor

Input = pb.ModelInferRequest.InferInputTensor

VALUES = {
    "BOOL": [True, False, True, True, False, False],
    "UINT8": [0, 1, 2, 3, 4, 255],
    "UINT16": [0, 1, 2, 3, 4, 65535],
    "UINT32": [0, 1, 2, 3, 4, 2**32 - 1],
    "UINT64": [0, 1, 2, 3, 4, 2**64 - 1],
    "INT8": [-128, 1, 2, 3, 4, 127],
    "INT16": [-(2**15), 1, 2, 3, 4, 2**15 - 1],
    "INT32": [-(2**31), 1, 2, 3, 4, 2**31 - 1],
    "INT64": [-(2**63), 1, 2, 3, 4, 2**63 - 1],
    "FP16": [0.5, -1.0, 2.0, 0.0, 1.5, 65504.0],
    "BF16": [0, 1, 0x3F80, 0x7F80, 0x8000, 0xFFFF],
    "FP32": [0.5, -1.0, 2.0, 0.0, 1.5, float("inf")],
    "FP64": [0.1, -1.0, 2.0, 0.0, 1e300, float("-inf")],
    "BYTES": [b"", b"\x00\xff", b"text", "ü".encode(), b"e", b"f"],
}
TYPED = [name for name, datatype in DATATYPES.items() if datatype.contents]


def tensor(datatype, shape=(2, 3), name="x"):
    array = np.empty(6, DATATYPES[datatype].dtype)
    array[:] = VALUES[datatype]
    return Tensor(name=name, datatype=datatype, array=array.reshape(shape))


def raw_request(*tensors, **members):
    inputs = [Input(name=t.name, datatype=t.datatype, shape=t.shape) for t in tensors]
    blobs = [bytes(to_raw(t)) for t in tensors]
    return pb.ModelInferRequest(inputs=inputs, raw_input_contents=blobs, **members)


def typed_request(*tensors, **members):
    request = pb.ModelInferRequest(**members)
    for t in tensors:
        added = request.inputs.add(name=t.name, datatype=t.datatype, shape=t.shape)
        getattr(added.contents, DATATYPES[t.datatype].contents).extend(to_typed(t))
    return request


def equal(left, right):
    return (left.name, left.datatype, left.shape) == (
        right.name,
        right.datatype,
        right.shape,
    ) and left.array.tolist() == right.array.tolist()


def encode(*args):
    """The response as the other end parses it."""
    return pb.ModelInferResponse.FromString(convert.encode(*args))


def sent(message):
    """The message as the other end parses it."""
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("datatype", DATATYPES)
def test_raw_there_and_back(datatype):
    decoded = convert.decode(sent(raw_request(tensor(datatype))))
    assert equal(decoded.inputs[0], tensor(datatype))

    response = encode("m", "1.0", "7", decoded.inputs, decoded)
    assert (response.model_name, response.model_version, response.id) == ("m", "1.0", "7")
    assert response.raw_output_contents == [to_raw(tensor(datatype))]
    assert not response.outputs[0].HasField("contents")


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_there_and_back(datatype):
    decoded = convert.decode(sent(typed_request(tensor(datatype))))
    assert equal(decoded.inputs[0], tensor(datatype))

    response = encode("m", "1.0", "7", decoded.inputs, decoded)
    field = DATATYPES[datatype].contents
    assert list(getattr(response.outputs[0].contents, field)) == VALUES[datatype]
    assert not response.raw_output_contents


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_makes_the_whole_answer_raw(datatype):
    decoded = convert.decode(typed_request(tensor("FP32")))
    outputs = [tensor("FP32", name="a"), tensor(datatype, name="b")]
    response = encode("m", "1.0", "7", outputs, decoded)
    assert response.raw_output_contents == [to_raw(output) for output in outputs]
    assert not any(output.HasField("contents") for output in response.outputs)


def test_shape_without_dimensions_is_one_element():
    request = pb.ModelInferRequest(inputs=[Input(name="x", datatype="BYTES")])
    request.inputs[0].contents.bytes_contents.append(b"\x89PNG")
    decoded = convert.decode(request).inputs[0]
    assert decoded.shape == ()
    assert decoded.array.item() == b"\x89PNG"


def test_open_dimension_is_inferred():
    request = raw_request(tensor("INT32"))
    request.inputs[0].shape[:] = [-1, 2]
    assert convert.decode(request).inputs[0].shape == (3, 2)


def test_outputs_are_selected_in_the_order_asked_for():
    request = typed_request(tensor("INT32"))
    for name in ("b", "a"):
        request.outputs.add(name=name)
    outputs = [tensor("INT32", name=name) for name in "abc"]
    response = encode("m", "1.0", "7", outputs, convert.decode(request))
    assert [output.name for output in response.outputs] == ["b", "a"]


def test_unknown_output_is_refused():
    request = typed_request(tensor("INT32"))
    request.outputs.add(name="z")
    with pytest.raises(InvalidInput, match=r'outputs\[0\]: no output "z", there is a'):
        convert.encode("m", "1", "7", [tensor("INT32", name="a")], convert.decode(request))


@pytest.mark.parametrize("made", [raw_request, typed_request])
def test_an_output_that_is_no_text_is_named(made):
    decoded = convert.decode(made(tensor("BYTES")))
    broken = Tensor(name="y", datatype="BYTES", array=np.array(["\ud800"], object))
    with pytest.raises(HandlerError, match=r'^output "y": .*surrogates not allowed'):
        convert.encode("m", "1", "7", [broken], decoded)


def test_parameters_there_and_back():
    values = {"flag": True, "n": -5, "big": 2**64 - 1, "x": 0.5, "text": "ü"}
    message = pb.ModelInferRequest(parameters=convert.parameters_to(values))
    decoded = convert.parameters_from(sent(message).parameters)
    assert decoded == values
    assert {name: type(value) for name, value in decoded.items()} == {
        name: type(value) for name, value in values.items()
    }


def test_parameter_of_no_known_kind_is_left_out_or_sent_as_text():
    assert convert.parameters_from({"later": pb.InferParameter()}) == {}
    assert convert.parameters_to({"list": [1, 2]})["list"].string_param == "[1, 2]"
    assert convert.parameters_to({"huge": 2**70})["huge"].string_param == str(2**70)


def test_tensor_parameters_are_kept():
    request = typed_request(tensor("INT32"))
    request.inputs[0].parameters["axis"].int64_param = 1
    decoded = convert.decode(request)
    assert decoded.inputs[0].parameters == {"axis": 1}
    response = encode("m", "1", "7", decoded.inputs, decoded)
    assert response.outputs[0].parameters["axis"].int64_param == 1


def broken(change):
    request = raw_request(tensor("INT32"), tensor("BYTES", name="y"))
    change(request)
    return request


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda r: r.ClearField("inputs"), "inputs: expected at least one tensor"),
        (lambda r: r.raw_input_contents.pop(), "raw_input_contents: 1 entries for 2 inputs"),
        (
            lambda r: r.inputs[0].contents.int_contents.append(1),
            r'inputs\[0\] "x".contents: must be absent',
        ),
        (lambda r: setattr(r.inputs[1], "name", "x"), r'inputs\[1\] "x": duplicate name'),
        (
            lambda r: (r.outputs.add(name="x"), r.outputs.add(name="x")),
            r'outputs\[1\] "x": duplicate name',
        ),
        (lambda r: setattr(r.inputs[0], "datatype", "INT33"), r'inputs\[0\] "x".datatype: '),
        (lambda r: r.inputs[0].shape.append(2), r'inputs\[0\] "x".data: 6 elements'),
        (lambda r: r.inputs[0].shape.extend([-1, -1]), r'inputs\[0\] "x".shape: '),
        (lambda r: r.inputs[0].shape.append(2**62), r'inputs\[0\] "x".data: 6 elements'),
        (
            lambda r: r.raw_input_contents.__setitem__(0, b"123"),
            r'inputs\[0\] "x": 3 bytes are not a multiple of 4',
        ),
        (
            lambda r: r.raw_input_contents.__setitem__(1, b"\xff\xff\xff\xff"),
            r'inputs\[1\] "y".data\[0\]: length is 4294967295, 0 bytes are left',
        ),
        (lambda r: r.raw_input_contents.__setitem__(1, b"\x01"), r"its length prefix is cut short"),
    ],
)
def test_bad_requests_name_the_element(change, text):
    with pytest.raises(InvalidInput, match=text):
        convert.decode(broken(change))


def test_contents_of_another_datatype_are_named():
    request = pb.ModelInferRequest(inputs=[Input(name="x", datatype="FP32", shape=[1])])
    request.inputs[0].contents.fp64_contents.append(1.0)
    with pytest.raises(InvalidInput, match="FP32 goes in fp32_contents, not fp64_contents"):
        convert.decode(request)


def test_typed_half_precision_is_refused_with_the_way_to_send_it():
    request = pb.ModelInferRequest(inputs=[Input(name="x", datatype="FP16", shape=[1])])
    request.inputs[0].contents.fp32_contents.append(1.0)
    with pytest.raises(InvalidInput, match="FP16 goes in raw_input_contents only"):
        convert.decode(request)


def test_typed_element_out_of_range_is_named():
    request = pb.ModelInferRequest(inputs=[Input(name="x", datatype="INT8", shape=[2])])
    request.inputs[0].contents.int_contents.extend([1, 200])
    with pytest.raises(InvalidInput, match=r"data\[1\]: 200 is not an INT8"):
        convert.decode(request)


@pytest.mark.parametrize("datatype", ["BOOL", "FP32", "FP64"])
@pytest.mark.parametrize("count", [0, 1, 127, 128, 40_000])
def test_packed_contents_of_any_length(datatype, count):
    """These are copied out of and into the message as one piece."""
    array = (np.arange(count) % 2).astype(DATATYPES[datatype].dtype)
    sent = Tensor(name="x", datatype=datatype, array=array)
    decoded = convert.decode(typed_request(sent))
    assert equal(decoded.inputs[0], sent)
    response = encode("m", "1", "7", [sent], decoded)
    field = getattr(response.outputs[0].contents, DATATYPES[datatype].contents)
    assert list(field) == array.tolist()


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_an_empty_tensor_is_answered_with_contents(datatype):
    """As those of other lengths are: its reader looks nowhere else."""
    empty = Tensor(name="x", datatype=datatype, array=np.empty(0, DATATYPES[datatype].dtype))
    response = encode("m", "1.0", "7", [empty], convert.decode(typed_request(empty)))
    assert response.outputs[0].HasField("contents")
    assert not response.raw_output_contents


def test_unknown_fields_are_no_elements():
    request = typed_request(tensor("FP32"))
    unknown = b"\xfa\x3f\x08" + b"\xff" * 8
    request.inputs[0].contents.MergeFromString(unknown)
    assert equal(convert.decode(request).inputs[0], tensor("FP32"))
