"""``ts.torch_handler.vllm_handler``."""

from __future__ import annotations

from kserve_torch.ts.unavailable import AbsentHandler


class VLLMHandler(AbsentHandler):
    """TorchServe's handler around a vLLM engine."""

    needs = ("vllm",)
    why = "vLLM runs its own server and processes; serve it with KServe's Hugging Face runtime"
