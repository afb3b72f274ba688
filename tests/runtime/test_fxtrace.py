"""Models that are traced, exported and read while others compute, or do the same."""

import io
import threading
import time

import pytest
import torch
from torch._export.serde.serialize import GraphModuleDeserializer
from torch.fx.experimental.proxy_tensor import make_fx

from kserve_torch.runtime import fxtrace


class Traced(torch.nn.Module):
    """Lets other threads compute while it is traced."""

    def __init__(self, meanwhile):
        super().__init__()
        self.part = torch.nn.ReLU()
        self.meanwhile = meanwhile

    def forward(self, x):
        self.meanwhile()
        return self.part(x)


def test_other_threads_compute_and_trace_meanwhile():
    fxtrace.install()
    other = torch.nn.Sequential(torch.nn.ReLU())
    answers = []

    def compute():
        answers.append(other(torch.tensor([-1.0, 2.0])).tolist())

    def meanwhile():
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join()

    graphs = []
    later = threading.Thread(target=lambda: graphs.append(torch.fx.symbolic_trace(other)))

    def both():
        meanwhile()
        later.start()

    traced = torch.fx.symbolic_trace(Traced(both))
    later.join()
    assert answers == [[0.0, 2.0]]
    for graph in (traced, *graphs):
        assert graph(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
        assert [node.op for node in graph.graph.nodes] == ["placeholder", "call_module", "output"]
    assert len(graphs) == 1


class Noting:
    """A lock that knows which threads have asked for it."""

    def __init__(self):
        self._lock = threading.RLock()
        self.asked = set()

    def acquire(self, *args, **options):
        self.asked.add(threading.get_ident())
        return self._lock.acquire(*args, **options)

    def release(self):
        self._lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *error):
        self.release()

    def wait_for(self, thread):
        """Until a thread has asked for it, or has ended without."""
        end = time.monotonic() + 30
        while thread.ident not in self.asked and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.001)


def meanwhile(monkeypatch, work):
    """A function in which another thread begins ``work``, at its first call, and what that does."""
    fxtrace.install()
    lock, answers = Noting(), []

    def run():
        try:
            answers.append(work())
        except BaseException as error:
            answers.append(error)

    other = threading.Thread(target=run)

    def begin():
        if other.ident is None:
            other.start()
            lock.wait_for(other)

    for owner, name, function in fxtrace._in_turn:
        # The tests' lock in the place of the module's.
        monkeypatch.setattr(owner, name, fxtrace._alone(lock)(function.__wrapped__))
    monkeypatch.setattr(fxtrace, "_lock", lock)
    return begin, other, answers


ONES = torch.ones(2)
TRACERS = {
    "export": lambda model: torch.export.export(model, (ONES,)).module(),
    "jit": lambda model: torch.jit.trace(model, ONES),
    "fx": torch.fx.symbolic_trace,
    "make_fx": lambda model: make_fx(model, pre_dispatch=True)(ONES),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:FutureWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("one", TRACERS)
@pytest.mark.parametrize("two", TRACERS)
def test_two_models_are_traced_one_after_the_other(monkeypatch, one, two):
    trace = TRACERS[two]
    begin, other, answers = meanwhile(monkeypatch, lambda: trace(torch.nn.Sequential()))
    mine = TRACERS[one](Traced(begin))
    other.join()
    assert [traced(ONES).tolist() for traced in (mine, *answers)] == [[1.0, 1.0]] * 2


def test_two_programs_are_read_one_after_the_other(monkeypatch):
    saved = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.ReLU(), (ONES,)), saved)

    def read():
        return torch.export.load(io.BytesIO(saved.getvalue())).module()(ONES).tolist()

    begin, other, answers = meanwhile(monkeypatch, read)
    torchs = GraphModuleDeserializer.deserialize_signature

    def deserialize_signature(*args):
        begin()
        return torchs(*args)

    monkeypatch.setattr(GraphModuleDeserializer, "deserialize_signature", deserialize_signature)
    answers.append(read())
    other.join()
    assert answers == [[1.0, 1.0]] * 2


def test_models_compute_after_one_was_compiled_while_another_was_traced(monkeypatch):
    call, ended = torch.nn.Module.__call__, threading.Event()

    def backend(graph, inputs):
        fxtrace._lock.asked.add(threading.get_ident())  # it has got here without
        ended.wait(30)
        return graph

    compiled = torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend=backend)
    begin, other, answers = meanwhile(monkeypatch, lambda: compiled(ONES).tolist())
    traced = torch.fx.symbolic_trace(Traced(begin))
    ended.set()
    other.join()
    assert answers == [[1.0, 1.0]]
    assert traced(ONES).tolist() == [1.0, 1.0]
    assert torch.nn.Module.__call__ is call


def test_compiling_goes_ahead_of_a_trace_that_takes_long(monkeypatch):
    monkeypatch.setattr(fxtrace, "PATIENCE", 0.01)
    compiled = torch.compile(lambda x: x * 1, backend="eager")
    begin, other, answers = meanwhile(monkeypatch, lambda: compiled(ONES).tolist())

    def wait():
        begin()
        other.join()

    torch.fx.symbolic_trace(Traced(wait))
    assert answers == [[1.0, 1.0]]
