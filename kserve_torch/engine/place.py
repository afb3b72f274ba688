"""Where a thread is that hangs: what its log line says, for whoever looks for the reason."""

from __future__ import annotations

import os
import sys
import threading
from traceback import walk_stack

from kserve_torch.namespace.scopes import PREFIX

#: How many innermost calls are always named, and how many are at most, with those in archives.
_INNERMOST, _MOST = 3, 10


def place_of(thread: threading.Thread) -> str:
    """The innermost calls of a thread, and those in archives' files.

    Returns:
        ``client.py:52 in read < handler.py:9 in handle``, innermost first; "" if it has ended.
    """
    innermost = sys._current_frames().get(thread.ident or 0)
    frames = () if innermost is None else walk_stack(innermost)
    told = [
        f"{os.path.basename(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"
        for depth, (frame, line) in enumerate(frames)
        if depth < _INNERMOST or str(frame.f_globals.get("__name__")).startswith(PREFIX)
    ]
    return " < ".join(told[:_MOST])
