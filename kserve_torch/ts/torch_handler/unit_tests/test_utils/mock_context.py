"""``ts.torch_handler.unit_tests.test_utils.mock_context`` (CONTRACT C6)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch

from kserve_torch.ts.metrics.metrics_store import MetricsStore
from kserve_torch.ts.utils.util import get_yaml_config


class MockContext:
    """A Context for tests of a handler: one batch, no request.

    Attributes:
        explain: what the header ``explain`` says.
    """

    def __init__(
        self,
        model_pt_file: str | None = "model.pt",
        model_dir: str = "ts/torch_handler/unit_tests/models/tmp",
        model_file: str | None = "model.py",
        gpu_id: int | str | None = "0",
        model_name: str = "mnist",
        model_yaml_config_file: str | Path | None = None,
    ) -> None:
        files = {"serializedFile": model_pt_file, "modelFile": model_file}
        self.model_name = model_name
        self.manifest: dict[str, Any] = {
            "model": {key: file for key, file in files.items() if file} | {"modelName": model_name}
        }
        config = model_yaml_config_file and Path(model_dir, model_yaml_config_file)
        self.model_yaml_config = get_yaml_config(config) if config else {}
        self.system_properties: dict[str, Any] = {"model_dir": model_dir}
        if torch.cuda.is_available() and gpu_id:
            self.system_properties["gpu_id"] = gpu_id
        self.explain = False
        self.metrics = MetricsStore(uuid.uuid4(), model_name)

    def get_request_header(self, idx: int, exp: str) -> Any:
        """``"True"`` or ``"False"`` for ``explain``, False for all other headers."""
        if exp == "explain" and idx == 0:
            return str(self.explain)
        return False
