"""``python -m benchmarks.peers setup``: an environment for each peer that needs one.

The environments hold only what this one lacks: torch and the rest are shared through a ``.pth``
file. ``list`` shows which peers are installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence

from benchmarks.peers import PEERS, Peer


def main() -> int:
    """Set up or list the peers; 1 if one could not be set up."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("action", choices=("setup", "list"))
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"of {', '.join(PEERS)}")
    options = parser.parse_args()
    unknown = set(options.peers) - set(PEERS)
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    peers = [PEERS[name] for name in options.peers or PEERS]
    if options.action == "setup":
        failed = [peer.name for peer in peers if not peer.installed and not set_up(peer)]
        return 1 if failed else 0
    for peer in peers:
        print(f"{peer.name:11}{'installed' if peer.installed else 'not installed'}")
    return 0


def set_up(peer: Peer) -> bool:
    """Make a peer's environment; False if pip could not."""
    print(f"{peer.name}: setting up {peer.environment}", file=sys.stderr)
    shutil.rmtree(peer.environment, ignore_errors=True)
    if not _run([sys.executable, "-m", "venv", str(peer.environment)]):
        return False
    shared = sysconfig.get_path("purelib")
    own = sysconfig.get_path("purelib", vars={"base": str(peer.environment)})
    # pip reads the file too, and does not install again what it finds there.
    with open(f"{own}/shared.pth", "w") as file:
        file.write(f"{shared}\n")
    pip = [str(peer.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not _run([*pip, *peer.packages]):
        return False
    (peer.environment / "complete").touch()
    return True


def _run(command: Sequence[str]) -> bool:
    code = subprocess.run(command).returncode
    if code:
        print(f"{' '.join(command)}: exit code {code}", file=sys.stderr)
    return code == 0


if __name__ == "__main__":
    sys.exit(main())
