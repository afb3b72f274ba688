from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kserve_torch.namespace.loader import Namespace

from ..makers import write
from .test_registrations import REMOTE

transformers = pytest.importorskip("transformers")


@pytest.mark.usefixtures("remote_code")
def test_a_models_own_transformers_runs_code_of_repositories(tmp_path: Path) -> None:
    """The code gets that, not the environment's, which runs the same; two versions differ."""
    copy = tmp_path / "packages" / "transformers"
    copy.parent.mkdir()
    copy.symlink_to(Path(transformers.__file__).parent)
    with ExitStack() as opened:
        own = opened.enter_context(closing(Namespace(copy.parent)))
        models = []
        for name, answer, packages in (("a", 1, None), ("v1", 1, own), ("v2", 2, own)):
            files = {**REMOTE, "model/helper.py": f"ANSWER = {answer}"}
            folder = write(tmp_path / name, files)
            namespace = opened.enter_context(closing(Namespace(folder, packages=packages)))
            with namespace.loading():
                handler = namespace.import_module("handler")
                models.append(handler.load())
        assert [model.answer for model in models] == [1, 1, 2]
        own_class = [isinstance(model, handler.PreTrainedModel) for model in models]
        assert own_class == [False, True, True]
