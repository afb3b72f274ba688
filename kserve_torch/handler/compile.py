"""The ``pt2`` section of model-config.yaml: `torch.compile` with its options (CONTRACT Y3)."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any

import torch

from kserve_torch.errors import LoadFailed

log = logging.getLogger(__name__)


class PT2Backend(StrEnum):
    """The backends that TorchServe allows."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    NVFUSER = "nvfuser"
    AOT_NVFUSER = "aot_nvfuser"
    AOT_CUDAGRAPHS = "aot_cudagraphs"
    OFI = "ofi"
    FX2TRT = "fx2trt"
    ONNXRT = "onnxrt"
    IPEX = "ipex"
    TORCHXLA_TRACE_ONCE = "torchxla_trace_once"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    HPU_BACKEND = "hpu_backend"


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether ``backend`` is one of `PT2Backend`; logs a warning if not."""
    if backend in {member.value for member in PT2Backend}:
        return True
    log.warning("pt2: %r is not a known torch.compile backend; the model stays eager", backend)
    return False


def compile_options(pt2: Any) -> dict[str, Any] | None:
    """The keyword arguments for `torch.compile` that a ``pt2`` section asks for.

    Args:
        pt2: a backend's name, a mapping with ``compile`` or ``export``, or the
            arguments themselves (deprecated).

    Returns:
        A new dict, or None if nothing is to be compiled.

    Raises:
        LoadFailed: the section has none of these forms.
    """
    if isinstance(pt2, str):
        options: dict[str, Any] = {"backend": pt2}
    elif not isinstance(pt2, dict):
        raise LoadFailed(f"pt2: expected a backend or a mapping, got {type(pt2).__name__}")
    elif "compile" in pt2:
        if not isinstance(pt2["compile"], dict):
            raise LoadFailed("pt2.compile: expected a mapping with enable: true")
        options = dict(pt2["compile"])
        if options.pop("enable", None) is not True:
            return None
    elif "export" in pt2:
        return None
    else:
        options = dict(pt2)
        log.warning("pt2: put the arguments of torch.compile under pt2.compile, with enable: true")
    known = "backend" not in options or check_valid_pt2_backend(options["backend"])
    return options if known else None


def wants_aot(pt2: Any) -> bool:
    """Whether ``pt2.export.aot_compile`` is true: the serialized file is a compiled ``.so``."""
    export = pt2.get("export") if isinstance(pt2, dict) else None
    return isinstance(export, dict) and export.get("aot_compile") is True


def compile_model(model: Any, options: dict[str, Any]) -> Any:
    """``model`` compiled, or as it is if `torch.compile` refuses; the first call does the work."""
    try:
        compiled = torch.compile(model, **options)
    except Exception as error:  # a backend may raise anything; the eager model still works
        log.warning("torch.compile(%s) failed, the model stays eager: %s", options, error)
        return model
    log.info("model is compiled with %s", options or "the default backend")
    return compiled


def uncompiled(model: Any) -> Any:
    """The eager model behind a compiled one."""
    return getattr(model, "_orig_mod", model)


def compiling_failed(error: Exception) -> bool:
    """Whether ``error`` is from the compiler; the input may be the cause all the same."""
    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
