"""Metrics as a server would have them after some events, for tests."""

from types import SimpleNamespace

from kserve_torch.events import (
    Accepted,
    BatchRan,
    Finished,
    Measured,
    Observers,
    Responded,
    Shed,
    StateChanged,
    WorkerChanged,
)
from kserve_torch.messages import Timing
from kserve_torch.metrics import Metrics
from kserve_torch.settings import Settings

TIMING = Timing(queued=0.25, handler=0.5, batch_rows=4)


def settings(mode="prometheus", detect=False, disable_system=False):
    return Settings(
        metrics_mode=mode,
        model_metrics_auto_detect=detect,
        disable_system_metrics=disable_system,
    )


class Fleet:
    """The part of a registry that is read at a scrape, with one version of one model."""

    def __init__(self, **statistics):
        numbers = {"queued": 0, "inflight": 0, "oldest_age": 0.0, "hung": 0, "workers": {}}
        self.listed_metrics = ()
        self.observers = Observers()
        self.now = SimpleNamespace(**numbers | statistics)
        self.version = SimpleNamespace(
            name="mnist", version="1.0", ready=True, statistics=lambda: self.now
        )

    def all(self):
        return [self.version]

    def ready(self):
        return True


def exposition(metrics, names=None):
    return b"".join(metrics.pieces(names))


def observed(*events, fleet=None, **kwargs):
    fleet = fleet or Fleet()
    metrics = Metrics(settings(**kwargs), fleet)
    for event in (StateChanged("mnist", "1.0", "READY"), *events):
        fleet.observers.tell(event)
    return metrics


LIGHT_LOAD = (
    WorkerChanged("mnist", "1.0", 9000, "READY", 1.5),
    Accepted("mnist"),
    BatchRan("mnist", "1.0", 4, 2),
    Finished("mnist", "1.0", TIMING),
    Responded("v1", "mnist", "1.0", 200, 0.8, timing=TIMING),
    Measured("HandlerTime", "gauge", "ms", (("ModelName", "mnist"), ("Level", "Model")), 2.5),
    Measured("PredictionTime", "gauge", "ms", (("ModelName", "mnist"), ("Level", "Model")), 3.0),
)

#: Something of everything that goes wrong.
TROUBLE = (
    Shed("mnist", "1.0", "queue_full"),
    Finished("mnist", "1.0", Timing(), "DeadlineExceeded"),
    Responded("v1", "mnist", "1.0", 503, 0.1),
    WorkerChanged("mnist", "1.0", 9000, "HUNG"),
)
