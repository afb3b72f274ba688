"""Start-up models that failed to load are loaded again (CONTRACT B4).

What they need may be there a moment later: the network of a new pod, a model hub, memory of a GPU
that others use. Nobody else would try: the server is live, so the pod is not restarted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from kserve_torch.engine.backoff import BackOff
from kserve_torch.errors import DownloadFailed, LoadFailed, OutOfMemory, ServingError
from kserve_torch.models.state import State

if TYPE_CHECKING:
    from kserve_torch.models.catalogue import Catalogue
    from kserve_torch.models.version import ModelVersion

log = logging.getLogger(__name__)


def worth_another_try(error: ServingError, version: ModelVersion | None = None) -> bool:
    """Whether loading may succeed next time; if that of ``version`` hangs, once it has ended."""
    hangs = version is not None and bool(version.hung)
    return hangs or isinstance(error, DownloadFailed | LoadFailed | OutOfMemory)


async def keep_trying(
    catalogue: Catalogue,
    version: ModelVersion,
    again: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Load a version that has failed again, after growing pauses, until it is ready.

    It ends early when the version is removed, was loaded by somebody else, fails in another way,
    or has failed for ``maxRetryTimeoutInSec``.

    One try is ``again``, which raises ServingError, by default `ModelVersion.try_again`.
    """
    again = again or version.try_again
    limit = version.limits.max_retry_timeout
    back_off = BackOff(limit)
    back_off.next(time.monotonic())  # the first try has no pause, and was the server's start
    while (pause := back_off.next(time.monotonic())) is not None:
        await asyncio.sleep(pause)
        if catalogue.draining or version not in catalogue:
            return
        # Somebody else tries, or a try hangs: another one might keep one more thread.
        if version.state is State.LOADING or version.hung:
            continue
        try:
            await again()
        except ServingError as error:
            if not worth_another_try(error, version):
                return
        else:
            return
    log.error(
        "model %s %s is not loaded again: it has failed for %g s (maxRetryTimeoutInSec)",
        version.name,
        version.version,
        limit,
    )
