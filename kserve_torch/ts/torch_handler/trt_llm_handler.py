"""``ts.torch_handler.trt_llm_handler``."""

from __future__ import annotations

from kserve_torch.ts.unavailable import AbsentHandler


class TRTLLMHandler(AbsentHandler):
    """TorchServe's handler around a TensorRT-LLM engine."""

    needs = ("tensorrt_llm",)
    why = (
        "TensorRT-LLM engines start processes of their own; serve them with KServe's Triton runtime"
    )
