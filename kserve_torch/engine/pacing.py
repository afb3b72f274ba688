"""How fast requests are refused: at once, unless clients try again and again.

Clients that send the next request as soon as one is refused would keep the event loop busy with
refusals, and the handlers would lose the interpreter's lock and the cores to it: with 20 such
clients a quarter of the requests were served, with 1,000 a seventh.
"""

from __future__ import annotations

#: Refusals that are sent at once.
BURST = 1000
#: Refusals per second that are sent at once, after such a burst.
RATE = 1000.0
#: Seconds that a refusal is held back at most: as long as it asks the client to wait.
MOST_SECONDS = 1.0


class Pacing:
    """Spaces the refusals of one queue out."""

    def __init__(self) -> None:
        #: When the next refusal would be due if each came ``1 / RATE`` after the one before.
        self._due = 0.0

    def wait(self, now: float) -> float:
        """Seconds to hold back the refusal of a request that came at ``now``."""
        self._due = min(max(self._due, now - BURST / RATE), now + MOST_SECONDS)
        wait = max(0.0, self._due - now)
        self._due += 1 / RATE
        return wait
