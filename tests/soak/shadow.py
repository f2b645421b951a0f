"""What one connection knows about the keys that only it writes.

A miss is correct if items are evicted. A hit is correct if it has a length that this connection may have written and
the expiry has not passed. A write that was cut off leaves both the old and the new state possible, even for a while
after a later write: the server may process the cut connection's bytes last.
"""

import time

# The server counts in whole seconds, and the driver takes the time before it sends.
LATE_S = 2.5
CUT_WRITE_LANDS_WITHIN_S = 20


class Shadow:
    """For each key its possible states: (length, expiry deadline or None, time until which later writes do not rule it
    out)."""

    def __init__(self):
        self.states = {}

    def _pending(self, key):
        now = time.monotonic()
        return [state for state in self.states.get(key, ()) if state[2] > now]

    def wrote(self, key, length, deadline):
        """`deadline`: by when it must have expired (monotonic seconds), or None."""
        self.states[key] = [*self._pending(key), (length, deadline, 0)]

    def maybe_wrote(self, key, length, deadline):
        """The expiry counts from when the write takes effect, which is assumed to be as late as possible."""
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
        """Why a miss is impossible if nothing is evicted, or None."""
        states = self.states.get(key, [])
        # An expiry is counted from the beginning of a second.
        if len(states) == 1 and (states[0][1] is None or now < states[0][1] - LATE_S):
            return f"{key!r}: lost; {states[0][0]} bytes were written last"
        return None

    def problem(self, key, length, now):
        """Why a hit of this length is impossible, or None."""
        states = self.states.get(key)
        if not states:
            return f"{key!r}: found, but it was deleted or never written"
        deadlines = [deadline for known, deadline, _ in states if known == length]
        if not deadlines:
            return f"{key!r}: {length} bytes found, {sorted({known for known, _, _ in states})} written last"
        if all(deadline is not None and now > deadline + LATE_S for deadline in deadlines):
            return f"{key!r}: found {now - max(deadlines):.1f} s after it expired"
        return None
