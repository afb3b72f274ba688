"""`TorchModelRepository`: the registry as KServe's model repository.

KServe asks its repository for models and their readiness, and to load and unload them by name
(CONTRACT O81-O85); the registry answers all of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kserve
from kserve.model import BaseKServeModel

from kserve_torch.engine.tasks import to_the_end
from kserve_torch.errors import ModelNotFound
from kserve_torch.sdk.model import TorchModel

if TYPE_CHECKING:
    from kserve_torch.models.registry import Registry


class TorchModelRepository(kserve.ModelRepository):  # type: ignore[misc]  # kserve is untyped
    """The models of a `Registry`, as `TorchModel` objects.

    Args:
        registry: the models.
    """

    def __init__(self, registry: Registry) -> None:
        super().__init__(str(registry.settings.model_dir or registry.settings.model_store or ""))
        self._registry = registry

    def get_model(self, name: str) -> TorchModel | None:
        """The model of that name, ready or not; None if there is none."""
        try:
            self._registry.find(name)
        except ModelNotFound:
            return None
        model: TorchModel | None = self.models.get(name)
        if model is None:
            model = self.models[name] = TorchModel(name, registry=self._registry)
        return model

    def get_models(self) -> dict[str, BaseKServeModel]:
        """All models by name."""
        return {name: model for name in self._registry.names() if (model := self.get_model(name))}

    async def load(self, name: str) -> bool:
        """Load, or load again, a model of the model store.

        Raises:
            ModelNotFound: the store has nothing of that name.
            LoadFailed: it is there and cannot be served.
        """
        return (await to_the_end(self._registry.load(name))).ready

    load_model = load  # KServe has two names for it

    def unload(self, name: str) -> None:
        """Forget a model at once; its last requests are still answered.

        Raises:
            KeyError: there is none; KServe's own repository raises this, too.
        """
        try:
            self._registry.unload(name)
        except ModelNotFound as error:
            raise KeyError(error.message) from error
        self.models.pop(name, None)
