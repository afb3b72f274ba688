import base64
import io
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from .scripts import run_script

ROOT = Path(__file__).resolve().parents[1]
REQUESTS = ROOT / "kf_request_json"
PICTURES = ROOT / "handlers" / "mnist" / "test_data"
SCRIPTS = [
    "v1/img2bytearray.py",
    "v2/totensor.py",
    "v2/mnist/totensor.py",
    "v2/mnist/tobytes.py",
    "v2/bert/tobytes.py",
    "v2/bert/bert_tokenizer.py",
]
MEAN, STD = 0.1307, 0.3081


def run(script, *arguments, cwd):
    return run_script(REQUESTS / script, *arguments, cwd=cwd)


def start(script, *arguments, cwd, **environment):
    """As `run`, in a process of its own."""
    return subprocess.run(
        [sys.executable, REQUESTS / script, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def made(script, *arguments, cwd, output="input.json"):
    done = run(script, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads((cwd / output).read_bytes())


def picture(digit):
    return PICTURES / f"{digit}.png"


def pixels(digit):
    return np.asarray(Image.open(picture(digit)), dtype=np.float32)[None] / 255


def test_v1_instances_hold_the_image_files(tmp_path):
    request = made("v1/img2bytearray.py", picture(4), picture(5), cwd=tmp_path)
    files = [base64.b64decode(instance["data"], validate=True) for instance in request["instances"]]
    assert files == [picture(4).read_bytes(), picture(5).read_bytes()]


def test_output_names_the_file(tmp_path):
    request = made(
        "v1/img2bytearray.py", picture(4), "-o", "four.json", cwd=tmp_path, output="four.json"
    )
    assert len(request["instances"]) == 1
    assert not (tmp_path / "input.json").exists()


def test_tensor_of_an_image_is_its_pixels(tmp_path):
    (tensor,) = made("v2/totensor.py", picture(3), cwd=tmp_path)["inputs"]
    assert tensor["datatype"] == "FP32"
    assert tensor["shape"] == [1, 28, 28]
    np.testing.assert_allclose(tensor["data"], pixels(3), atol=5.1e-5)


def test_tensor_of_a_colour_image_has_three_channels(tmp_path):
    Image.new("RGB", (5, 4), (255, 0, 51)).save(tmp_path / "colour.png")
    (tensor,) = made("v2/totensor.py", "colour.png", cwd=tmp_path)["inputs"]
    assert tensor["shape"] == [3, 4, 5]
    assert np.array(tensor["data"])[:, 0, 0].tolist() == [1.0, 0.0, 0.2]


def test_mnist_tensors_are_normalised(tmp_path):
    inputs = made("v2/mnist/totensor.py", picture(3), picture(8), cwd=tmp_path)["inputs"]
    assert [tensor["name"] for tensor in inputs] == ["input-0", "input-1"]
    for tensor, digit in zip(inputs, (3, 8), strict=True):
        np.testing.assert_allclose(tensor["data"], (pixels(digit) - MEAN) / STD, atol=5.1e-5)


def test_tensor_of_a_text_is_its_bytes(tmp_path):
    (tmp_path / "text.txt").write_text("Grüße", "utf-8")
    (tensor,) = made("v2/totensor.py", "text.txt", cwd=tmp_path)["inputs"]
    assert tensor["datatype"] == "INT64"
    assert tensor["shape"] == [7]
    assert bytes(tensor["data"]).decode() == "Grüße"


def test_bytes_are_base64_in_json(tmp_path):
    (image,) = made("v2/mnist/tobytes.py", picture(6), cwd=tmp_path)["inputs"]
    assert (image["datatype"], image["shape"]) == ("BYTES", [1])
    assert base64.b64decode(image["data"][0], validate=True) == picture(6).read_bytes()


def test_binary_form_puts_the_bytes_behind_the_json(tmp_path):
    done = run(
        "v2/mnist/tobytes.py", picture(6), picture(1), "--form", "binary", "-o", "b", cwd=tmp_path
    )
    length = int(done.stdout.rpartition("Inference-Header-Content-Length: ")[2])
    body = (tmp_path / "b").read_bytes()
    header, tail = json.loads(body[:length]), body[length:]
    for described, digit in zip(header["inputs"], (6, 1), strict=True):
        size = described["parameters"]["binary_data_size"]
        assert struct.unpack("<I", tail[:4])[0] == size - 4
        assert tail[4:size] == picture(digit).read_bytes()
        tail = tail[size:]
    assert tail == b""


def test_grpc_forms_are_messages_of_the_protocol(tmp_path):
    from google.protobuf.json_format import ParseDict
    from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest

    arguments = ["v2/mnist/totensor.py", picture(9), "--model", "digits", "--form"]
    typed = ParseDict(made(*arguments, "grpc", cwd=tmp_path), ModelInferRequest())
    raw = ParseDict(made(*arguments, "grpc-raw", cwd=tmp_path), ModelInferRequest())
    expected = (pixels(9) - MEAN) / STD
    assert typed.model_name == raw.model_name == "digits"
    assert list(raw.inputs[0].shape) == list(typed.inputs[0].shape) == [1, 28, 28]
    np.testing.assert_allclose(
        typed.inputs[0].contents.fp32_contents, expected.ravel(), atol=5.1e-5
    )
    sent = np.frombuffer(raw.raw_input_contents[0], dtype="<f4")
    np.testing.assert_allclose(sent, expected.ravel(), atol=1e-6)


def test_text_as_bytes(tmp_path):
    text = 'it\'s "good" 真'
    (sent,) = made("v2/bert/tobytes.py", "--input_text", text, cwd=tmp_path, output="bert_v2.json")[
        "inputs"
    ]
    assert (sent["datatype"], sent["shape"], sent["data"]) == ("BYTES", [1], [text])


def test_a_text_over_grpc_is_for_the_model_of_the_archive(tmp_path):
    archive = json.loads((ROOT / "handlers/bert_sequence_classification/archive.json").read_bytes())
    arguments = ["--input_text", "good", "--form", "grpc"]
    request = made("v2/bert/tobytes.py", *arguments, cwd=tmp_path, output="bert_v2.json")
    assert request["model_name"] == archive["name"]


def test_tokens_of_a_text(tmp_path):
    pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "business", "is", "good"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    arguments = ["--input_text", "Business is good", "--model_name", ".", "--max_length", "8"]
    ids, mask = made("v2/bert/bert_tokenizer.py", *arguments, cwd=tmp_path, output="bert_v2.json")[
        "inputs"
    ]
    assert (ids["name"], ids["shape"]) == ("input_ids", [8])
    assert ids["data"] == [2, 5, 6, 7, 3, 0, 0, 0]
    assert (mask["name"], mask["datatype"]) == ("attention_masks", "INT64")
    assert mask["data"] == [1, 1, 1, 1, 1, 0, 0, 0]


def test_tokenizing_without_transformers_says_what_to_install(tmp_path):
    (tmp_path / "transformers.py").write_text("raise ImportError")
    arguments = ["v2/bert/bert_tokenizer.py", "--input_text", "x"]
    done = start(*arguments, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.endswith("not installed: pip install transformers\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_names_the_output_option(script, tmp_path):
    done = start(script, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "--output" in done.stdout


@pytest.mark.parametrize("script", SCRIPTS[:4])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"", "empty"),
        (b"\xff\xfe\x00\x01", "an image"),
        ("truncated", "an image"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(script, content, message, tmp_path):
    if content is not None:
        half = picture(2).read_bytes()[:150]
        (tmp_path / "bad.png").write_bytes(half if content == "truncated" else content)
    done = run(script, "bad.png", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "bad.png" in done.stderr
    assert message in done.stderr
    assert not (tmp_path / "input.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["v1/img2bytearray.py"],
        ["v2/mnist/totensor.py", "x.png", "--std", "0"],
        ["v2/mnist/totensor.py", "x.png", "--mean", "nan"],
        ["v2/mnist/tobytes.py", "x.png", "--form", "xml"],
        ["v2/bert/tobytes.py"],
        ["v2/bert/bert_tokenizer.py", "--input_text", "x", "--max_length", "0"],
        ["v1/img2bytearray.py", picture(2), "-o", "no/such/folder/x.json"],
    ],
)
def test_wrong_arguments_exit_2_without_a_traceback(arguments, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("sample", "arguments"),
    [
        ("v1/mnist.json", ["v1/img2bytearray.py", picture(2)]),
        ("v1/mnist_batch.json", ["v1/img2bytearray.py", picture(2), picture(7)]),
        ("v2/mnist/mnist_v2_tensor.json", ["v2/mnist/totensor.py", picture(2)]),
        ("v2/mnist/mnist_v2_bytes.json", ["v2/mnist/tobytes.py", picture(2)]),
        ("v2/mnist/mnist_v2_tensor_batch.json", ["v2/mnist/totensor.py", picture(2), picture(7)]),
        ("v2/mnist/mnist_v2_bytes_batch.json", ["v2/mnist/tobytes.py", picture(2), picture(7)]),
        (
            "v2/mnist/mnist_v2_tensor_grpc.json",
            ["v2/mnist/totensor.py", picture(2), "--form", "grpc"],
        ),
        (
            "v2/mnist/mnist_v2_tensor_grpc_raw.json",
            ["v2/mnist/totensor.py", picture(2), "--form", "grpc-raw"],
        ),
        (
            "v2/mnist/mnist_v2_bytes_grpc.json",
            ["v2/mnist/tobytes.py", picture(2), "--form", "grpc"],
        ),
        (
            "v2/mnist/mnist_v2_bytes_grpc_raw.json",
            ["v2/mnist/tobytes.py", picture(2), "--form", "grpc-raw"],
        ),
        ("v2/mnist/mnist_v2_tensor.bin", ["v2/mnist/totensor.py", picture(2), "--form", "binary"]),
        ("v2/mnist/mnist_v2_bytes.bin", ["v2/mnist/tobytes.py", picture(2), "--form", "binary"]),
        (
            "v2/text_classifier/text_classifier_v2_tensor.json",
            ["v2/totensor.py", REQUESTS / "v2/text_classifier/sample.txt"],
        ),
        (
            "v2/bert/bert_v2_bytes.json",
            ["v2/bert/tobytes.py", "--input_text", "this year business is good"],
        ),
    ],
)
def test_samples_are_what_the_scripts_write(sample, arguments, tmp_path):
    done = run(*arguments, "-o", "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made").read_bytes() == (REQUESTS / sample).read_bytes()


@pytest.mark.parametrize("sample", ["mnist_v2_tensor.bin", "mnist_v2_bytes.bin"])
def test_the_readme_states_the_header_lengths(sample):
    body = (REQUESTS / "v2/mnist" / sample).read_bytes()
    header, length = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    (tensor,) = header["inputs"]
    assert len(body) == length + tensor["parameters"]["binary_data_size"]
    text = " ".join((REQUESTS / "README.md").read_text().split())
    assert f"{length} for `{sample}`" in text
    for command in text.split("curl ")[1:]:
        if sample in command.partition("```")[0]:
            assert f"Inference-Header-Content-Length: {length}" in command


def test_samples_of_images_decode():
    instances = json.loads((REQUESTS / "mnist.json").read_bytes())["instances"]
    (image,) = [Image.open(io.BytesIO(base64.b64decode(row["data"]))) for row in instances]
    assert (image.mode, image.size) == ("L", (28, 28))
