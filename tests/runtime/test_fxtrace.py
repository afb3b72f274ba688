"""Models that are traced symbolically while others compute."""

import threading

import torch

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
