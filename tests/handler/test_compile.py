import copy

import numpy as np
import pytest
import torch

from kserve_torch.errors import InvalidInput, LoadFailed
from kserve_torch.handler.base import BaseHandler
from kserve_torch.handler.compile import (
    PT2Backend,
    check_valid_pt2_backend,
    compile_options,
    wants_aot,
)

ROW = torch.ones(1, 8, 8).tolist()


@pytest.mark.parametrize(
    ("pt2", "options"),
    [
        ("inductor", {"backend": "inductor"}),
        ({"backend": "eager", "mode": "x"}, {"backend": "eager", "mode": "x"}),
        ({"compile": {"enable": True}}, {}),
        ({"compile": {"enable": True, "backend": "eager"}}, {"backend": "eager"}),
        ({"compile": {"enable": False, "backend": "eager"}}, None),
        ({"compile": {"backend": "eager"}}, None),
        ({"export": {"aot_compile": True}}, None),
        ("no-such-backend", None),
    ],
)
def test_what_a_section_asks_for(pt2, options, caplog):
    before = copy.deepcopy(pt2)
    assert compile_options(pt2) == options
    assert pt2 == before
    is_old = isinstance(pt2, dict) and "mode" in pt2
    assert ("under pt2.compile" in caplog.text) == is_old


@pytest.mark.parametrize("pt2", [3, ["inductor"], {"compile": True}])
def test_a_section_of_another_form(pt2):
    with pytest.raises(LoadFailed, match="pt2"):
        compile_options(pt2)


def test_the_fourteen_backends(caplog):
    assert len(PT2Backend) == 14
    assert check_valid_pt2_backend("onnxrt")
    assert not check_valid_pt2_backend("other")
    assert "other" in caplog.text


def test_aot():
    assert wants_aot({"export": {"aot_compile": True}})
    assert not wants_aot({"export": {"aot_compile": False}})
    assert not wants_aot("inductor")
    assert not wants_aot(None)


def test_a_compiled_model_answers_the_same(folder, load):
    eager = load(BaseHandler(), folder)
    compiled = load(
        BaseHandler(), folder, yaml={"pt2": {"compile": {"enable": True, "backend": "eager"}}}
    )
    assert type(compiled.handler.model).__name__ == "OptimizedModule"
    np.testing.assert_allclose(compiled.ask(ROW), eager.ask(ROW), rtol=1e-5)


def test_options_that_torch_refuses_leave_the_model_eager(folder, load, caplog):
    loaded = load(BaseHandler(), folder, yaml={"pt2": {"backend": "eager", "nonsense": 1}})
    assert type(loaded.handler.model).__name__ == "Net"
    assert "stays eager" in caplog.text


def test_a_backend_that_fails_at_the_first_call_leaves_it_eager(folder, load, caplog):
    eager = load(BaseHandler(), folder)
    loaded = load(BaseHandler(), folder)

    def broken(graph, inputs):
        raise RuntimeError("no compiler")

    loaded.handler.model = torch.compile(loaded.handler.model, backend=broken)
    np.testing.assert_allclose(loaded.ask(ROW), eager.ask(ROW), rtol=1e-5)
    assert type(loaded.handler.model).__name__ == "Net"
    assert "stays eager" in caplog.text


def test_a_bad_input_does_not_undo_the_compiling(folder, load):
    loaded = load(
        BaseHandler(), folder, yaml={"pt2": {"compile": {"enable": True, "backend": "eager"}}}
    )
    with pytest.raises(InvalidInput, match="does not take"):
        loaded.ask(torch.zeros(3, 8, 8).tolist())
    assert type(loaded.handler.model).__name__ == "OptimizedModule"


def test_what_a_compiled_model_raises_by_itself_is_not_tried_without_compiling(folder, load):
    class Compiled:
        def _orig_mod(self, inputs):
            pytest.fail("it was called")

        def __call__(self, inputs):
            raise RuntimeError("busy")

    loaded = load(BaseHandler(), folder)
    loaded.handler.model = Compiled()
    with pytest.raises(RuntimeError, match="busy"):
        loaded.ask(ROW)
