"""The instances of a model version whose weights the later ones share: one on each device.

Not once a handler has written to them: what one instance has loaded since is not for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kserve_torch.runtime.instance import Instance


class Firsts:
    """The first instance on each device, and a successor once it has left.

    Args:
        present: the instances that workers hold now; called on any thread.
    """

    def __init__(self, present: Callable[[], Iterable[Instance]]) -> None:
        self._present = present
        self._by_device: dict[int | None, Instance] = {}
        self._lock = threading.Lock()
        self._ended = False

    def on(self, gpu_id: int | None) -> Instance | None:
        """The one on a GPU, or with None on the CPU; None if there is none yet."""
        return self._by_device.get(gpu_id)

    def add(self, instance: Instance) -> None:
        """Take an instance as the first on its device, unless there is one."""
        if not self._ended:
            self._by_device.setdefault(instance.gpu_id, instance)

    def left(self, instance: Instance) -> None:
        """Let another instance take the place of one that has left: it would stay in memory."""
        with self._lock:  # several may leave at once, and must not take each other's place
            for gpu_id, first in list(self._by_device.items()):
                if first is instance:
                    del self._by_device[gpu_id]
            for other in self._present():
                if other is not instance:
                    self.add(other)

    def end(self) -> None:
        """Let no instance share weights from now on."""
        self._ended = True
        self._by_device.clear()
