"""BaseHandler: load the model, then ``preprocess -> inference -> postprocess`` for each batch.

An archive's handler overrides steps. Each step may also be called on its own::

    rows -> preprocess -> tensor -> inference -> output -> postprocess -> one result per row
                            `----> explain_handle -> get_insights -> one explanation per row
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from kserve_torch.errors import LoadFailed, Unsupported
from kserve_torch.handler import weights
from kserve_torch.handler.calls import calls_of
from kserve_torch.handler.compile import compile_model, compile_options, wants_aot
from kserve_torch.handler.eager import load_eager
from kserve_torch.handler.explain import blame_target
from kserve_torch.handler.labels import load_label_mapping
from kserve_torch.handler.rows import as_targets, payloads, sent
from kserve_torch.handler.tensors import as_batch, stack, to_device
from kserve_torch.handler.timer import timed
from kserve_torch.messages import NOTHING
from kserve_torch.namespace.scopes import import_module
from kserve_torch.runtime import profiler
from kserve_torch.runtime.context import Context
from kserve_torch.runtime.devices import device_for

log = logging.getLogger(__name__)

#: Methods that get raw rows: if an archive overrides one, rows must hold lists, not arrays.
ROW_READERS = ("handle", "preprocess", "explain_handle", "get_insights")


class BaseHandler:
    """TorchServe's BaseHandler (CONTRACT 3.8): the base of nearly every archive's handler.

    What TorchServe's does not have begins with two underscores, here and in the stock handlers: a
    subclass may have a `_load_model`, `_infer` or `_batch` of its own.

    Attributes:
        accepts_arrays: whether rows may hold numpy arrays; None to find out, see `takes_arrays`.
        model: the model, on ``device``, in evaluation mode; None before `initialize`.
        mapping: class index -> label, or None.
        device: of the model and its inputs.
        map_location: the device's type, as text.
        context: the Context of the running call.
        manifest: the parsed manifest.
        model_pt_path: the weights file, or None.
        model_yaml_config: the parsed model-config.yaml.
        profiler_args: arguments for `torch.profiler.profile`.
        initialized: whether `initialize` finished.
        explain: whether the running call is an explanation.
        target: for old subclasses; not used here.
    """

    accepts_arrays: bool | None = None

    # On the class, because archives' handlers may not call this __init__. Not so the model: if a
    # handler is a torch module, it is in _modules, which an attribute of the class would hide.
    model: Any
    mapping: dict[str, str] | None = None
    device: Any = None
    map_location: str | None = None
    initialized = False
    context: Any = None
    manifest: Any = None
    model_pt_path: str | None = None
    model_yaml_config: Mapping[str, Any] = NOTHING
    profiler_args: Mapping[str, Any] = NOTHING
    explain = False
    target: Any = 0

    def __init__(self) -> None:
        self.model = None
        self.profiler_args = {}

    # --- loading ----------------------------------------------------------------------------------

    def initialize(self, context: Context) -> None:
        """Load model, weights and labels from the archive.

        Raises:
            LoadFailed: with the reason.
        """
        self.context = context
        self.model_yaml_config = getattr(context, "model_yaml_config", {})
        self.manifest = context.manifest
        self.device = device_for(context.system_properties.get("gpu_id"))
        self.map_location = self.device.type
        model_dir = Path(context.system_properties["model_dir"])
        self.model = self.__compiled(self.__load_model(model_dir))
        self.mapping = load_label_mapping(model_dir / "index_to_name.json")
        self.initialized = True

    def __load_model(self, model_dir: Path) -> Any:
        files = (self.manifest or {}).get("model", {})
        model_file, serialized_file = files.get("modelFile"), files.get("serializedFile")
        self.model_pt_path = str(model_dir / serialized_file) if serialized_file else None
        if model_file:
            model = self._load_pickled_model(str(model_dir), model_file, self.model_pt_path)
            # Not chained: models of archives may have methods that return nothing.
            model.to(self.device)
            model.eval()
            return model
        if self.model_pt_path is None:
            raise LoadFailed(
                "No model weights could be loaded: a weights file such as model.pt is wanted "
                "(serializedFile in a manifest), or a model file such as model.py (modelFile)"
            )
        if self.model_pt_path.endswith(".pt"):
            model = self._load_torchscript_model(self.model_pt_path)
            model.eval()
            return model
        if self.model_pt_path.endswith(".so"):
            return self._load_torch_export_aot_compile(self.model_pt_path)
        return weights.load_serialized(Path(self.model_pt_path), self.device)

    def _load_pickled_model(
        self, model_dir: str, model_file: str, model_pt_path: str | None
    ) -> Any:
        """The one class of ``model_file``, filled with its weights."""
        path = Path(model_dir, model_file)
        if not path.is_file():
            raise LoadFailed(f"{path.name}: named in the manifest, not in the archive")
        module = import_module(path.name.split(".")[0])
        state = Path(model_pt_path) if model_pt_path else None
        return load_eager(module, state)

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        # Subclasses call it for files of any name.
        return weights.load_serialized(Path(model_pt_path), self.device, suffix=".pt")

    def _load_torch_export_aot_compile(self, model_so_path: str) -> Any:
        if not self._use_torch_export_aot_compile():
            raise LoadFailed(f"{Path(model_so_path).name}: needs pt2.export.aot_compile: true")
        return weights.load_serialized(Path(model_so_path), self.device)

    def _use_torch_export_aot_compile(self) -> bool:
        return wants_aot(self.model_yaml_config.get("pt2"))

    def __compiled(self, model: Any) -> Any:
        pt2 = self.model_yaml_config.get("pt2")
        options = None if pt2 is None else compile_options(pt2)
        return model if options is None else compile_model(model, options)

    # --- the three steps --------------------------------------------------------------------------

    @timed
    def preprocess(self, data: list[Any]) -> Any:
        """Rows to one tensor ``[rows, ...]`` on the device; a row is numbers or holds them.

        Subclasses may also pass an array or a tensor of all rows, or a single number, or, if they
        read the rows themselves, arrays instead of rows; these keep their dtype, as in TorchServe.

        Raises:
            BadRow: a row holds something else.
            InvalidInput: the rows have different shapes, or different dtypes in several requests.
        """
        if isinstance(data, int | float | np.generic | torch.Tensor) or _holds_numbers(data):
            return torch.as_tensor(_writeable(data), device=self.device)
        if all(map(_holds_numbers, data)) and not takes_arrays(self):
            rows = [torch.from_numpy(np.array(row)) for row in data]
            return to_device(stack(rows, self.context), self.device)
        dtype = torch.get_default_dtype() if calls_of(self).takes_floats else None
        return to_device(as_batch(payloads(data), dtype, self.context), self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """The model's output for ``data``, without gradients.

        A model that takes floats only also gets integers as floats: JSON has one kind of number,
        and some clients write 1.0 as 1.

        Raises:
            InvalidInput: the model cannot take a tensor of this shape or dtype.
        """
        return calls_of(self).infer(self, to_device(data, self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        """The model's output as nested lists, one item per row."""
        result: list[Any] = data.tolist()
        return result

    # --- one batch --------------------------------------------------------------------------------

    def handle(self, data: list[Any], context: Context) -> list[Any]:
        """Answer one batch: one result per row."""
        start = time.perf_counter()
        self.context = context
        output = answer(self, data)
        milliseconds = round((time.perf_counter() - start) * 1000, 2)
        context.metrics.add_time("HandlerTime", milliseconds, None, "ms")
        return output

    def _infer_with_profiler(self, data: list[Any]) -> tuple[list[Any], Any]:
        """The batch's results and the profile of the steps that made them (CONTRACT E5)."""
        model = (self.manifest or {}).get("model", {})
        # Contexts that tests bring often name no model.
        name = model.get("modelName") or getattr(self.context, "model_name", "")
        with profiler.profile(name, self.profiler_args) as profile:
            with record_function("preprocess"):
                inputs = self.preprocess(data)
            if self._is_explain():
                with record_function("explain"):
                    return self.explain_handle(inputs, data), profile
            with record_function("inference"):
                output = self.inference(inputs)
            with record_function("postprocess"):
                return self.postprocess(output), profile

    def _is_explain(self) -> bool:
        self.explain = self.__header_says("explain")
        return self.explain

    def _is_describe(self) -> bool:
        return self.__header_says("describe")

    def __header_says(self, name: str) -> bool:
        """Whether the batch's header ``name`` is ``True``; a batch has one verb."""
        return self.context is not None and self.context.get_request_header(0, name) == "True"

    # --- explanations and descriptions ------------------------------------------------------------

    def explain_handle(self, data_preprocess: Any, raw_data: list[Any]) -> list[Any]:
        """One explanation per row, each about its row's own target (CONTRACT E1, T-40)."""
        targets = as_targets(raw_data, classes_only=_is_ours(self.get_insights))
        # TorchServe has one for all, so handlers index with it: `output[:, target]`.
        target = targets if any(other != targets[0] for other in targets) else targets[0]
        with blame_target(target):
            return self.get_insights(data_preprocess, sent(raw_data[0]), target)

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """One explanation per row; a handler that explains overrides this.

        Args:
            tensor_data: what `preprocess` made.
            _: the first row's payload, as the client sent it.
            target: the class to explain, or whatever the row has as its target; a list with one
                per row if they differ.

        Raises:
            Unsupported: this one does not.
        """
        raise Unsupported(f"{type(self).__name__} gives no explanations")

    def describe_handle(self) -> Any:
        """A description of the model as a JSON object; None if there is nothing to say."""
        return None

    def get_device(self) -> Any:
        """The model's device."""
        return self.device


def takes_arrays(handler: Any) -> bool:
    """Whether a handler's rows may hold arrays: as it says, else if only our methods read them."""
    said = getattr(handler, "accepts_arrays", None)
    if said is None and isinstance(handler, BaseHandler):
        return all(_is_ours(getattr(handler, name)) for name in ROW_READERS)
    return bool(said)


def answer(handler: BaseHandler, data: list[Any]) -> list[Any]:
    """What a batch asks for: a description, predictions or explanations."""
    if handler._is_describe():
        return [handler.describe_handle()]
    if profiler.enabled():
        return handler._infer_with_profiler(data)[0]
    inputs = handler.preprocess(data)
    if handler._is_explain():
        return handler.explain_handle(inputs, data)
    return handler.postprocess(handler.inference(inputs))


def _is_ours(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).startswith("kserve_torch.")


def _writeable(data: Any) -> Any:
    """``data``, or a copy of a read-only array: torch would write to the request's bytes."""
    return data.copy() if isinstance(data, np.ndarray) and not data.flags.writeable else data


def _holds_numbers(row: Any) -> bool:
    """Whether a row is an array that torch may take; others are the client's fault."""
    return isinstance(row, np.ndarray) and row.dtype.kind in "biufc" and row.dtype.isnative
