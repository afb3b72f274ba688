"""Which accelerator a worker's instance is put on (CONTRACT 3.2, Y5), and whether it still works.

An assertion that fails on a GPU, or an illegal access to its memory, ends the process's CUDA
context: from then on every call on that GPU fails, whoever makes it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from kserve_torch.errors import DeviceLost

log = logging.getLogger(__name__)

#: GPUs whose CUDA context has ended.
_lost: set[int] = set()
#: The streams of workers that are gone, by GPU, for new workers. torch keeps memory for each stream
#: that was ever used: what was freed in it, and up to 32 MiB per cuBLAS handle.
_streams: defaultdict[int, list[Any]] = defaultdict(list)


def gpus(most: int | None = None) -> int:
    """The number of GPUs, up to ``most``."""
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return present if most is None else min(present, most)


def gpu_for(
    index: int,
    earlier: int,
    device_type: str | None,
    device_ids: Sequence[int],
    number_of_gpu: int | None,
) -> int | None:
    """The GPU of a model's ``index``-th worker, in turn; None for the CPU.

    Args:
        index: of the worker, from 0 on.
        earlier: workers of other models that have had their turn.
        device_type: ``cpu``, ``gpu``, or None for a GPU if there is one.
        device_ids: the model's own choice; ignored as a whole if one of them does not exist.
        number_of_gpu: how many may be used, or None for all.
    """
    if device_type == "cpu":
        return None
    count = gpus(number_of_gpu)
    if device_type == "gpu" and not count:
        log.warning("deviceType is gpu, but no GPU is available: the model runs on the CPU")
    if not count:
        return None
    if device_ids and max(device_ids) < count:
        return device_ids[index % len(device_ids)]
    if device_ids:
        log.warning(
            "deviceIds %s: only %d GPUs are available, using all of them", list(device_ids), count
        )
    return (earlier + index) % count


def device_for(gpu_id: int | str | None) -> torch.device:
    """The GPU ``gpu_id`` if there are GPUs, else the CPU."""
    if gpu_id is None or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(gpu_id))


@functools.cache
def use_tensor_cores() -> None:
    """Let GPUs that have TF32 compute float32 products with it, as TorchServe does.

    Only the first call does anything: handlers may choose otherwise.
    """
    if torch.cuda.get_device_capability() >= (8, 0):
        torch.set_float32_matmul_precision("high")


def stream_on(gpu_id: int | None) -> AbstractContextManager[Any]:
    """A CUDA stream for one worker's calls, until `leave` it; a null context for the CPU."""
    if gpu_id is None or not torch.cuda.is_available():
        return nullcontext()
    try:
        return within(_streams[gpu_id].pop())
    except IndexError:
        return within(_new_stream(gpu_id))


def _new_stream(gpu_id: int) -> Any:
    """A stream that waits for the default one, which waits for it; torch's own do neither.

    New threads begin in the default stream, and other libraries use it: what they read there must
    have been computed, as if there were no other stream. Streams of two workers run side by side.
    """
    handle = ctypes.c_void_p()
    with torch.cuda.device(gpu_id):
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(cudart.cudaStreamCreate(ctypes.addressof(handle)))
        return torch.cuda.ExternalStream(handle.value, gpu_id)  # type: ignore[no-untyped-call]


def leave(gpu_id: int | None, context: AbstractContextManager[Any]) -> None:
    """Let another worker have what `stream_on` has returned for this GPU."""
    if gpu_id is not None and isinstance(context, torch.cuda.StreamContext):
        _streams[gpu_id].append(context.stream)


def current_stream() -> Any:
    """The calling thread's CUDA stream; None if nothing in the process uses CUDA."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.current_stream() if used else None


def within(stream: Any) -> AbstractContextManager[Any]:
    """A context for CUDA work of the calling thread in ``stream``; None changes nothing."""
    if stream is None:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.cuda.stream(stream)
    return context


def settle(gpu_id: int | None) -> None:
    """Wait for a GPU's queued work: the streams of its workers do not wait for each other."""
    if gpu_id is not None and torch.cuda.is_available():
        torch.cuda.synchronize(gpu_id)


def require(gpu_id: int | None) -> None:
    """Ask for a GPU that still works; None is the CPU, which always does.

    Raises:
        DeviceLost: it can no longer be used.
    """
    if gpu_id in _lost:
        raise DeviceLost(f"GPU {gpu_id} is lost until the server is restarted")


def examine(gpu_id: int | None) -> None:
    """Find out whether a GPU still works, after a call on it has failed."""
    if gpu_id is None or gpu_id in _lost or not torch.cuda.is_available():
        return
    error = None
    for _ in range(2):  # an error that has ended the context is raised again, others only once
        try:
            torch.cuda.synchronize(gpu_id)
        except RuntimeError as failure:
            error = failure
        else:
            return
    _lost.add(gpu_id)
    log.error(
        "GPU %d is lost, liveness fails from now on: only a new process can use it again: %s",
        gpu_id,
        error,
    )


def all_work() -> bool:
    """False once a GPU is lost."""
    return not _lost


def free_cache() -> None:
    """Release cached device memory: for a smaller batch, for other models or other processes.

    Not once a GPU is lost: torch asks all of them, and that one would raise.
    """
    if torch.cuda.is_available() and all_work():
        torch.cuda.empty_cache()
