"""Loads handler instances: each gets its archive's modules and a Context, and is initialised."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kserve_torch.archives.archive import Archive
from kserve_torch.errors import LoadFailed
from kserve_torch.events import Measured
from kserve_torch.messages import fresh_id
from kserve_torch.namespace import spawned
from kserve_torch.namespace.loader import Namespace
from kserve_torch.namespace.packages import packages_of
from kserve_torch.runtime import (
    devices,
    embeddings,
    fxtrace,
    matmul,
    operators,
    oplibraries,
    paramdata,
    torchload,
    torchstate,
)
from kserve_torch.runtime.context import Context
from kserve_torch.runtime.instance import Instance, restored
from kserve_torch.runtime.reasons import load_failure
from kserve_torch.settings.metrics_file import ListedMetric
from kserve_torch.ts import __version__ as TORCHSERVE_VERSION
from kserve_torch.ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Process-wide settings that loading depends on.

    Attributes:
        workdir: where packages are installed.
        install_packages: TorchServe's ``install_py_dep_per_model``.
        limit_max_image_pixels: TorchServe's setting of that name, for handlers to read.
        metrics: what ``metrics_config`` lists; handlers ask ``context.metrics`` for it by name.
    """

    workdir: Path
    install_packages: bool = False
    limit_max_image_pixels: bool = True
    metrics: Sequence[ListedMetric] = ()


@restored()
def load_instance(
    archive: Archive,
    *,
    name: str,
    gpu_id: int | None = None,
    batch_size: int = 1,
    v2_rows: str = "tensor",
    measure: Callable[[Measured], None],
    options: LoadOptions,
    first: Instance | None = None,
) -> Instance:
    """Import and initialise the archive's handler.

    On a worker's thread (any but the main one) the model's folder becomes that thread's working
    directory (CONTRACT T-36).

    Args:
        archive: stays open as long as the instance lives.
        name: the registered name.
        gpu_id: index of the accelerator; None for the CPU.
        batch_size: most requests per call, for the handler to read.
        v2_rows: see `Limits`.
        measure: gets the handler's own metrics, on the calling thread.
        options: see `LoadOptions`.
        first: another instance of the same archive, whose weights this one shares.

    Raises:
        LoadFailed: with the reason.
        OutOfMemory: the weights do not fit.
        DeviceLost: the GPU can no longer be used.
    """
    _refuse_unsupported(archive)
    devices.require(gpu_id)
    for part in (fxtrace, operators, oplibraries, paramdata, torchload, torchstate):
        part.install()
    matmul.install(archive.root)
    instance = None
    try:
        if gpu_id is not None:
            with _lock:  # models are loaded in parallel; torch refuses what is done a second time
                devices.use_tensor_cores()
                embeddings.install()
        context = context_of(archive, name, gpu_id, batch_size, measure, options)
        namespace = namespace_of(archive, name, options)
        instance = Instance(archive, namespace, context, v2_rows)
        instance.initialize(first)
    except BaseException as error:
        if instance is not None:
            instance.close()
        installs = options.install_packages
        failure = load_failure(error, archive.root, archive.manifest, installs)
        raise failure from (error.__cause__ if failure is error else error)
    return instance


def namespace_of(archive: Archive, name: str, options: LoadOptions) -> Namespace:
    """The archive's modules, with the packages that it needs if the server installs them.

    Raises:
        LoadFailed: a package could not be installed.
    """
    handler = PurePosixPath(archive.manifest.handler.partition(":")[0])
    path = [archive.root / handler.parent, archive.root]
    packages = packages_of(archive, name, options.workdir) if options.install_packages else None
    spawned.install()
    return Namespace(archive.root, path, packages)


def context_of(
    archive: Archive,
    name: str,
    gpu_id: int | None,
    batch_size: int,
    measure: Callable[[Measured], None],
    options: LoadOptions,
) -> Context:
    """The Context that the handler gets with each call; arguments as for `load_instance`."""
    metrics = MetricsCacheYamlImpl(model_name=name, measure=measure)
    metrics.add_listed(options.metrics)
    # Of no request, and yet no errors: what handlers report while they load has the model's name.
    metrics.set_request_ids(fresh_id())
    return Context(
        name,
        str(archive.root),
        # Handlers write into both dicts (CONTRACT Y3).
        copy.deepcopy(dict(archive.manifest.raw)),
        batch_size,
        gpu_id,
        TORCHSERVE_VERSION,
        limit_max_image_pixels=options.limit_max_image_pixels,
        metrics=metrics,
        model_yaml_config=copy.deepcopy(dict(archive.yaml)),
    )


def _refuse_unsupported(archive: Archive) -> None:
    """Refuse models that need what this server does not support.

    Raises:
        LoadFailed: it is spread over processes (CONTRACT Y5), or its handler must be called for
            each token, and would answer with the first one (R10).
    """
    processes = archive.config.get("torchrun", {}).get("nproc-per-node", 1)
    level = archive.config.get("parallelLevel", 0)
    if processes not in (0, 1) or level > 1:
        raise LoadFailed(
            "model-config.yaml: parallelLevel or torchrun.nproc-per-node above 1 needs several "
            "processes; this server runs a model in one"
        )
    if archive.config.get("continuousBatching", False):
        raise LoadFailed(
            "model-config.yaml: continuousBatching needs a server that calls the handler again for "
            "each token; this one calls it once for each batch"
        )
