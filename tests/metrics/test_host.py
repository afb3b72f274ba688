import sys
from types import SimpleNamespace

import pytest

from kserve_torch.metrics import host

from .observed import exposition, observed


class Cuda:
    """Two GPUs, of which this process uses the first."""

    def __init__(self, initialized=True):
        self.initialized = initialized
        self.asked = set()

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        return 2

    def memory_reserved(self, index):
        return 4096 if index == 0 else 0

    def memory_allocated(self, index):
        self.asked.add(index)
        return 1024

    def mem_get_info(self, index):
        self.asked.add(index)
        return 60 << 20, 80 << 20

    def utilization(self, index):
        return 37


@pytest.fixture
def cuda(monkeypatch):
    found = Cuda()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=found))
    monkeypatch.setattr(host, "find_spec", lambda name: object())
    return found


def lines(families):
    return [line for family in families for line in family.lines() if line[0] != "#"]


def test_host_numbers_are_in_their_units():
    shown = lines(host.host_families("h"))
    numbers = {line.split("{")[0]: float(line.split()[-1]) for line in shown}
    assert 0 <= numbers["CPUUtilization"] <= 100
    assert 0 < numbers["MemoryUtilization"] <= 100
    assert 50 < numbers["MemoryUsed"] < 1 << 26
    assert 0 < numbers["DiskUsage"] + numbers["DiskAvailable"] < 1 << 20


def test_gpus_in_use_are_measured_and_no_others(cuda):
    labels = 'Level="Host",DeviceId="0",Hostname="h"'
    assert lines(host.gpu_families("h")) == [
        f"GPUMemoryUtilization{{{labels}}} 25.0",
        f"GPUMemoryUsed{{{labels}}} 20.0",
        f"GPUUtilization{{{labels}}} 37.0",
    ]
    assert lines(host.device_families()) == [
        'cuda_memory_allocated_bytes{device="0"} 1024.0',
        'cuda_memory_reserved_bytes{device="0"} 4096.0',
    ]
    assert cuda.asked == {0}


def test_load_of_a_gpu_needs_nvidias_library(cuda, monkeypatch):
    monkeypatch.setattr(host, "find_spec", lambda name: None)
    assert not any(line.startswith("GPUUtilization") for line in lines(host.gpu_families("h")))


def test_a_scrape_does_not_wake_a_gpu(cuda):
    cuda.initialized = False
    assert lines(host.gpu_families("h")) == []
    assert lines(host.device_families()) == []
    assert cuda.asked == set()


def test_a_broken_gpu_hides_nothing_else_and_is_reported_once(cuda, monkeypatch, caplog):
    class NvmlError(Exception):
        pass

    def broken(index):
        raise NvmlError("driver")

    metrics = observed()
    monkeypatch.setattr(cuda, "utilization", broken, raising=True)
    texts = [exposition(metrics).decode() for _ in range(2)]
    assert all("CPUUtilization{" in text and "queue_depth{" in text for text in texts)
    assert all("GPUMemoryUsed{" in text and "GPUUtilization" not in text for text in texts)
    assert caplog.text.count("metrics: GPUs cannot be measured") == 1
