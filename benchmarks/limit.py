"""A CPU limit for what is measured, as pods have it: a control group with a CPU quota."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

#: Where Linux mounts control groups, of either version.
ROOT = Path("/sys/fs/cgroup")
#: The quota's period in microseconds, as in Kubernetes.
PERIOD = 100_000
#: Joins the group $1, mounts it at $2, where a container sees its own group, and runs the rest.
_ENTER = 'echo $$ >"$1/cgroup.procs" && mount --bind "$1" "$2" && shift 2 && exec "$@"'


@contextlib.contextmanager
def limited(cores: float, root: Path = ROOT) -> Iterator[list[str]]:
    """Make a control group whose processes together may use so many cores; needs root.

    Args:
        cores: more than 0.
        root: where the control groups are mounted.

    Yields:
        What to put before a command to run it in the group.

    Raises:
        OSError: there are no control groups, or they cannot be changed.
    """
    second = (root / "cgroup.controllers").exists()
    mounted = root if second else root / "cpu"
    group = mounted / "kserve_torch-benchmarks"
    group.mkdir(exist_ok=True)
    try:
        quota = round(cores * PERIOD)
        if second:
            (root / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        yield ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(group), str(mounted)]
    finally:
        with contextlib.suppress(OSError):  # a process that has not ended yet keeps it
            group.rmdir()
