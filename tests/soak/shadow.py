"""What one connection knows of the keys only it writes.

A miss is right where items are evicted. A hit is right when it shows a length this connection may have left there and
the expiry has not passed. A write that was cut off leaves both the old and the new state possible, and for a while
even after a later write: the server may come to the cut connection's bytes last.
"""

import time

# The server counts in whole seconds, and the driver notes the time before it sends.
LATE_S = 2.5
CUT_WRITE_LANDS_WITHIN_S = 20


class Shadow:
    """For each key the states it may be in: (length, expiry deadline or None, possible whatever is written until)."""

    def __init__(self):
        self.states = {}

    def _pending(self, key):
        now = time.monotonic()
        return [state for state in self.states.get(key, ()) if state[2] > now]

    def wrote(self, key, length, deadline):
        """`deadline`: when it must have expired (monotonic seconds), or None."""
        self.states[key] = [*self._pending(key), (length, deadline, 0)]

    def maybe_wrote(self, key, length, deadline):
        """The expiry counts from when the write lands, which may be as late as it can be."""
        latest = None if deadline is None else deadline + CUT_WRITE_LANDS_WITHIN_S
        self.states.setdefault(key, []).append((length, latest, time.monotonic() + CUT_WRITE_LANDS_WITHIN_S))

    def removed(self, key):
        self.states[key] = self._pending(key)

    def touched(self, key, deadline, surely=True):
        """An expiry that may or may not have been set leaves the later of the two possible."""
        states = []
        for length, old, until in self.states.get(key, ()):
            if not surely or until:
                new = None if old is None or deadline is None else max(old, deadline)
            else:
                new = deadline
            states.append((length, new, until))
        self.states[key] = states

    def loss(self, key, now):
        """Why a miss cannot be where nothing is evicted, or None."""
        states = self.states.get(key, [])
        # An expiry is counted from the beginning of a second.
        if len(states) == 1 and (states[0][1] is None or now < states[0][1] - LATE_S):
            return f"{key!r}: lost; {states[0][0]} bytes were written last"
        return None

    def problem(self, key, length, now):
        """Why a hit of this length cannot be, or None."""
        states = self.states.get(key)
        if not states:
            return f"{key!r}: found, but it was deleted or never written"
        deadlines = [deadline for known, deadline, _ in states if known == length]
        if not deadlines:
            return f"{key!r}: {length} bytes found, {sorted({known for known, _, _ in states})} written last"
        if all(deadline is not None and now > deadline + LATE_S for deadline in deadlines):
            return f"{key!r}: found {now - max(deadlines):.1f} s after it expired"
        return None
