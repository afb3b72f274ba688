"""Write ``weights.pt`` for a handler whose network is one of torchvision's.

    python handlers/make_weights.py image_classifier

Without options the weights are random: they show how the handler is served, but the predictions are
meaningless. For real predictions, give a checkpoint of the same network, or let torchvision
download its own.
"""

import argparse
import importlib.util
import pickle
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models

HERE = Path(__file__).resolve().parent
SEED, NEWLINE = 1, "\n"
#: What torchvision publishes for each network.
PRETRAINED = {
    "image_classifier": models.ResNet18_Weights.DEFAULT,
    "object_detector": models.detection.SSDLite320_MobileNet_V3_Large_Weights.DEFAULT,
    "image_segmenter": models.segmentation.LRASPP_MobileNet_V3_Large_Weights.DEFAULT,
}


def main() -> int:
    """Write the weights that the command line asks for; 2 if they do not fit the network."""
    options = _options()
    for handler in options.handlers:
        model = network(handler)
        try:
            if options.pretrained:
                fill(model, PRETRAINED[handler].get_state_dict(check_hash=True))
            elif options.checkpoint:
                fill(model, torch.load(options.checkpoint, map_location="cpu", weights_only=True))
            else:
                settle(model)
        except (OSError, RuntimeError, TypeError, pickle.UnpicklingError) as error:
            source = options.checkpoint or "the download"
            print(f"make_weights: {source}: {str(error).partition(NEWLINE)[0]}", file=sys.stderr)
            return 2
        target = options.output / handler / "weights.pt"
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), target)
        print(f"written: {target}")
    return 0


def network(handler: str) -> nn.Module:
    """A network of the one class in the handler's ``model.py``, with random weights."""
    torch.manual_seed(SEED)
    spec = importlib.util.spec_from_file_location(handler, HERE / handler / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    )
    return found().eval()


def fill(model: nn.Module, checkpoint: dict[str, torch.Tensor]) -> None:
    """Load a checkpoint of torchvision's network, which may be wrapped in the handler's.

    Raises:
        RuntimeError: it is another network's.
        TypeError: it is no dict of tensors.
    """
    getattr(model, "network", model).load_state_dict(checkpoint)


@torch.inference_mode()
def settle(model: nn.Module) -> None:
    """Set the statistics of batch normalisation by clouds of colour, or signals fade out."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in layers:
        layer.momentum = 1.0
        layer.train()
    model(F.interpolate(torch.rand(4, 3, 8, 8), size=224, mode="bilinear"))
    model.eval()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("handlers", nargs="+", choices=PRETRAINED, metavar="handler")
    parser.add_argument(
        "--output", type=Path, default=HERE, help="folder that contains the handlers' folders"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--checkpoint", type=Path, help="state_dict of torchvision's network")
    source.add_argument("--pretrained", action="store_true", help="download torchvision's weights")
    options = parser.parse_args()
    if options.checkpoint and len(options.handlers) > 1:
        parser.error("argument --checkpoint: it fits one handler only")
    return options


if __name__ == "__main__":
    sys.exit(main())
