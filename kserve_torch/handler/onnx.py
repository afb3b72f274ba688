"""ONNX models through onnxruntime, with the interface of a torch model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from kserve_torch.errors import InvalidInput, LoadFailed, Unsupported
from kserve_torch.handler.tensors import describe, is_cuda

#: What nodes say of their input in other errors than InvalidArgument, which is always about it.
_ABOUT_THE_INPUT = re.compile(
    r"dimension mismatch|kernel channels"  # MatMul; Conv
    r"|broadcast an axis|cannot be reshaped"  # Add and others; Reshape
    r"|mismatched dimensions|size of selected axis"  # Concat; Split
)
#: What comes before the last of it: the node, and the condition in onnxruntime's source.
_BEFORE = re.compile(r".*(INVALID_ARGUMENT : |Status Message: | was false\. )", re.DOTALL)


class OnnxModel:
    """An ``onnxruntime.InferenceSession``, called with tensors in the order of its inputs.

    Everything else (``run``, ``get_inputs``) is the session's: handlers written for TorchServe,
    where ``self.model`` is the bare session, work as they are.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        try:
            import onnxruntime
            from onnxruntime.capi import onnxruntime_pybind11_state as errors
        except ModuleNotFoundError as error:
            raise LoadFailed(f"{path.name}: serving it needs the package onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # They would wait actively for the next call, on cores that the event loop needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        wanted: list[Any] = ["CPUExecutionProvider"]
        if is_cuda(device):  # where it lacks CUDA, onnxruntime says so and takes the next one
            wanted.insert(0, ("CUDAExecutionProvider", {"device_id": device.index or 0}))
        self._refusal = errors.InvalidArgument
        self._others = (errors.Fail, errors.RuntimeException)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=wanted)

    def __getattr__(self, name: str) -> Any:
        if name == "session":  # asked for while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.session, name)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The model's outputs: one tensor, or a tuple of them; texts and maps are left as they are.

        Raises:
            InvalidInput: the model needs other shapes or dtypes.
            Unsupported: gradients are needed.
        """
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            raise Unsupported("an ONNX model has no gradients, and without them no explanations")
        names = (spec.name for spec in self.session.get_inputs())
        feed = {
            name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)
        }
        try:
            results = self.session.run(None, feed)
        except (self._refusal, *self._others) as error:
            text = str(error).strip()
            if isinstance(error, self._others) and not _ABOUT_THE_INPUT.search(text):
                raise
            text = _BEFORE.sub("", text)
            raise InvalidInput(f"the model does not take {describe(tensors)}: {text}") from error
        outputs = tuple(map(_as_tensor, results))
        return outputs[0] if len(outputs) == 1 else outputs


def _as_tensor(result: Any) -> Any:
    try:
        return torch.as_tensor(result)
    except (TypeError, RuntimeError, ValueError):  # scikit-learn's classifiers answer labels
        return result
