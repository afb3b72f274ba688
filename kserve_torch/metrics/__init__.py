"""Metrics: what is counted and measured, as Prometheus text.

``observer`` passes events on and writes the text. ``torchserve`` has TorchServe's names,
``serving`` and ``engine`` this server's own, ``host`` the machine, ``custom`` what handlers report
and ``sdk`` KServe's histograms.
"""

from kserve_torch.metrics.observer import Metrics

__all__ = ["Metrics"]
