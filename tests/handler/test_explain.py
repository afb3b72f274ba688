import copy
import sys

import captum.attr
import numpy as np
import pytest
import torch
from torch import nn

from kserve_torch.errors import BadRow, InvalidInput, Unsupported
from kserve_torch.handler.explain import LazyAttribution, integrated_gradients


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 4)).eval()


@pytest.fixture
def ig(model):
    return LazyAttribution("IntegratedGradients", lambda: (model,))


def test_captum_is_imported_by_the_first_explanation_only(forks):
    forks.run("""
import sys
from kserve_torch.ts.torch_handler import densenet_handler, image_classifier, image_segmenter
from kserve_torch.ts.torch_handler import object_detector, text_classifier
import torch
from kserve_torch.handler.explain import LazyAttribution, integrated_gradients
ig = LazyAttribution("IntegratedGradients", lambda: (torch.nn.Linear(2, 2),))
assert "captum" not in sys.modules
integrated_gradients(ig, torch.zeros(1, 2), 0)
assert "captum" in sys.modules
""")


def test_attributions_are_captums_own_to_the_bit_and_their_points_worked_out_once(
    model, ig, monkeypatch
):
    worked_out = []
    leggauss = np.polynomial.legendre.leggauss

    def counting(degree):
        worked_out.append(degree)
        return leggauss(degree)

    monkeypatch.setattr(np.polynomial.legendre, "leggauss", counting)
    inputs = torch.rand(3, 1, 8, 8)
    ours = [integrated_gradients(ig, inputs, target) for target in (0, 3)]
    assert worked_out == [15, 15]  # sizes and places of the steps
    own = captum.attr.IntegratedGradients(model)
    for result, target in zip(ours, (0, 3), strict=True):
        assert result == own.attribute(inputs, target=target, n_steps=15).tolist()


def test_attributions_add_up_to_the_difference(model, ig):
    inputs = torch.rand(1, 1, 8, 8)
    attributions = np.array(integrated_gradients(ig, inputs, 2))
    with torch.no_grad():
        difference = model(inputs)[0, 2] - model(torch.zeros_like(inputs))[0, 2]
    assert attributions.shape == (1, 1, 8, 8)
    assert attributions.sum() == pytest.approx(difference.item(), abs=1e-3)


@pytest.mark.parametrize("limit", [1, 7, 64, 1000])
def test_a_batch_gives_the_same_numbers_as_its_rows_alone(ig, limit):
    inputs = torch.rand(5, 1, 8, 8)
    targets = [3, 0, 1, 1, 2]
    together = integrated_gradients(ig, inputs, targets, internal_batch_size=limit)
    alone = [
        integrated_gradients(ig, inputs[i : i + 1], target)[0] for i, target in enumerate(targets)
    ]
    assert np.abs(np.array(together) - np.array(alone)).max() < 1e-5


def test_no_more_rows_than_the_limit_go_through_the_model_at_once(model, ig):
    sizes = []
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    integrated_gradients(ig, torch.rand(4, 1, 8, 8), 0, internal_batch_size=10)
    assert max(sizes) <= 10
    sizes.clear()
    integrated_gradients(ig, torch.rand(1, 1, 8, 8), 0)
    assert max(sizes) == 15


def test_a_shape_that_the_model_does_not_take(ig):
    with pytest.raises(InvalidInput, match=r"\[1, 3, 8, 8\]"):
        integrated_gradients(ig, torch.rand(1, 3, 8, 8), 0)


def test_captums_own_object_shows_through(ig, model):
    assert ig.forward_func is model
    assert ig.has_convergence_delta()


def test_without_captum_the_error_names_it(ig, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(Unsupported, match="captum"):
        integrated_gradients(ig, torch.rand(1, 1, 8, 8), 0)


def test_why_captum_cannot_be_imported_is_told(ig, monkeypatch, tmp_path):
    (tmp_path / "captum.py").write_text("raise ImportError('Matplotlib requires numpy>=1.25')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "captum")
    monkeypatch.delitem(sys.modules, "captum.attr")
    with pytest.raises(ImportError, match="numpy"):
        integrated_gradients(ig, torch.rand(1, 1, 8, 8), 0)


def test_archives_that_set_captums_object_themselves(model):
    captum = pytest.importorskip("captum.attr")
    own = captum.IntegratedGradients(model)
    lazy = LazyAttribution("IntegratedGradients", lambda: (model,))
    inputs = torch.rand(1, 1, 8, 8)
    assert integrated_gradients(own, inputs, 1) == integrated_gradients(lazy, inputs, 1)


def test_a_target_that_is_no_class_is_found_before_a_device_computes():
    """On a GPU, captum's own look-up would end the process's CUDA context."""
    model = nn.Linear(4, 3, device="meta")
    method = LazyAttribution("IntegratedGradients", lambda: (model,))
    with pytest.raises(BadRow) as caught:
        integrated_gradients(method, torch.rand(2, 4, device="meta"), [0, 99])
    assert (caught.value.index, caught.value.reason[:22]) == (1, "target: 99 is no class")
    with pytest.raises(BadRow, match="target: 99 is no class"):
        integrated_gradients(method, torch.rand(2, 4, device="meta"), 99)


def test_an_index_that_no_target_names_is_not_the_targets_fault():
    method = LazyAttribution("IntegratedGradients", lambda: (lambda data: data[:, [7]],))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        integrated_gradients(method, torch.rand(2, 4), [0, 1])


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        ([(0, 1), (1, 5)], BadRow, "target: 5 is no class, the model has 3 (0 is the first)"),
        (1, InvalidInput, "target: 1 does not fit the model's output: Target not provided"),
    ],
)
def test_targets_of_an_output_with_several_dimensions(target, error, text):
    model = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)))
    method = LazyAttribution("IntegratedGradients", lambda: (model,))
    with pytest.raises(error) as caught:
        integrated_gradients(method, torch.rand(2, 4), target)
    assert str(getattr(caught.value, "reason", caught.value)).startswith(text)
    assert getattr(caught.value, "index", 1) == 1


def test_an_attribution_can_be_copied(ig, model):
    assert copy.copy(ig).forward_func is model
