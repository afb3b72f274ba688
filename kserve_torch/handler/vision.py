"""VisionHandler: rows with images, or with numbers, to one batch of tensors."""

from __future__ import annotations

import copy
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Self

import torch
from PIL import Image
from torchvision import transforms

from kserve_torch.errors import Unsupported
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.compile import uncompiled
from kserve_torch.handler.explain import LazyAttribution, integrated_gradients
from kserve_torch.handler.images import LARGE, LARGE_BESIDE_GPUS, decode_images, to_tensors
from kserve_torch.handler.rows import payloads, refuse_several
from kserve_torch.handler.tensors import as_batch, as_tensor, is_cuda, stack, to_device
from kserve_torch.handler.timer import timed
from kserve_torch.runtime.context import Context
from kserve_torch.runtime.torchstate import THREADS


class VisionHandler(BaseHandler):
    """Base of the image handlers (CONTRACT 3.8).

    Attributes:
        image_processing: one PIL image to a tensor; subclasses set their own transforms.
        ig: integrated gradients of the model.
    """

    image_processing: Any = transforms.Compose([transforms.ToTensor()])
    ig: Any = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Gives it its own transforms; not in ``__init__``, which archives' handlers may skip."""
        handler = super().__new__(cls)
        owner = next(owner for owner in cls.__mro__ if "image_processing" in vars(owner))
        if owner.__module__.startswith("kserve_torch."):  # shared by all archives
            handler.image_processing = copy.deepcopy(cls.image_processing)
        return handler

    def initialize(self, context: Context) -> None:
        """Load the model and prepare explanations.

        Raises:
            LoadFailed: with the reason.
        """
        super().initialize(context)
        self.ig = LazyAttribution("IntegratedGradients", lambda: (self.__scores,))
        if not context.system_properties.get("limit_max_image_pixels", True):
            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: list[Any]) -> Any:
        """Rows to one float32 tensor ``[rows, ...]`` on the device.

        A row holds an image file's bytes, base64 text of them, or numbers; `image_processing` does
        not apply to numbers.

        Raises:
            BadRow: a row holds none of these.
            InvalidInput: the rows have different shapes, or different dtypes in several requests.
        """
        values = payloads(data)
        for index, value in enumerate(values):
            refuse_several(index, value, "image")
        return to_device(self.__batch(values), self.device)

    def __batch(self, values: list[Any]) -> torch.Tensor:
        encoded = {
            index: value
            for index, value in enumerate(values)
            if isinstance(value, (str, bytes, bytearray, memoryview))
        }
        if not encoded:
            return as_batch(values, torch.float32)
        large = LARGE_BESIDE_GPUS if is_cuda(self.device) else LARGE
        images, processing = decode_images(encoded, self.image_processing, self.__pool, large)
        alone = len(images) == len(values)
        tensors = to_tensors(images, processing, self.device if alone else None)
        if alone and isinstance(tensors, torch.Tensor):
            return tensors
        processed = dict(zip(encoded, tensors, strict=True))
        return stack(
            [
                processed[index] if index in processed else as_tensor(index, value, torch.float32)
                for index, value in enumerate(values)
            ],
            self.context,
        )

    @cached_property
    def __pool(self) -> Executor | None:
        """Threads that decode images, for this handler only, so that no other waits for them."""
        return ThreadPoolExecutor(THREADS, "images") if THREADS > 1 else None

    def get_insights(self, tensor_data: Any, _: Any, target: Any = 0) -> list[Any]:
        """Integrated gradients of each row, of the row's own shape.

        Raises:
            Unsupported: `initialize` was overridden, or `preprocess` gives no tensor, as for
                detection models, which take a list of images.
        """
        if self.ig is None or not isinstance(tensor_data, torch.Tensor):
            return super().get_insights(tensor_data, _, target)
        return integrated_gradients(self.ig, tensor_data, target)

    def __scores(self, inputs: torch.Tensor) -> torch.Tensor:
        """What explanations are about: the model's output, if it is one tensor.

        Never compiled: that would be done anew for gradients, and takes a minute and more.
        """
        output = uncompiled(self.model)(inputs)
        if not isinstance(output, torch.Tensor):
            kind = type(output).__name__
            raise Unsupported(f"explanations are of models that answer a tensor, not a {kind}")
        if inputs.requires_grad and not output.requires_grad:  # such as AOTInductor's
            raise Unsupported("the model gives no gradients, and without them no explanations")
        return output
