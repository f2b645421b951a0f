"""Samples the server's memory while the load runs.

Sampled once a second, Rss four times as often:
    resident    Rss of /proc/PID/smaps_rollup: the whole process, connection buffers and program included; its highest since the
                sample before
    live        `payload` of `stats memory`: keys and values
    headers     `metadata` of `stats memory`: headers of items and their optional words
    in flight   `in_flight` of `stats memory`: large items being received, connection buffers
    allocated   `allocated` of `stats memory`: what the allocator handed out for items and index
    evicted     `evictions` of `stats`: items removed because the budget was reached
    deviation   by how much the sum of `/memory` is away from Rss, as a fraction
"""

import dataclasses
import threading
import time

from tests.clients.text_connection import TextConnection
from tests.resident import deviation

INTERVAL_S = 1.0
LOOKS = 4


@dataclasses.dataclass(frozen=True)
class Sample:
    at_s: float
    resident: int
    live: int
    headers: int
    allocated: int
    items: int
    in_flight: int
    evicted: int
    deviation: float


def resident(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Rss:"))


class Watch:
    """`samples` since the start; a thread of its own adds to them between `start` and `stop`."""

    def __init__(self, node):
        self.node = node
        self.text = TextConnection(node.memcached, timeout_s=60)
        self.samples = []
        self.problems = []
        self.began = time.monotonic()
        self._highest = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def figures(self, what):
        self.text.socket.sendall(what + b"\r\n")
        figures = {}
        while (line := self.text.reader.readline()) != b"END\r\n":
            if not line.startswith(b"STAT "):
                raise RuntimeError(f"{what!r}: {line!r}")
            _, name, value = line.split(maxsplit=2)
            figures[name.decode()] = value
        return figures

    def sample(self):
        evicted = int(self.figures(b"stats")["evictions"])
        figures = {name: int(value) for name, value in self.figures(b"stats memory").items()}
        self._look()
        one = Sample(
            time.monotonic() - self.began, self._highest, figures["payload"], figures["metadata"], figures["allocated"], figures["items"],
            figures["in_flight"], evicted, deviation(self.node),
        )
        self._highest = 0
        self.samples.append(one)
        return one

    def _look(self):
        self._highest = max(self._highest, resident(self.node.pid))

    def _run(self):
        looks = 0
        while not self._end.wait(INTERVAL_S / LOOKS):
            looks += 1
            try:
                self._look()
                if looks % LOOKS == 0:
                    self.sample()
            except Exception as error:
                self.problems.append(f"watching: {error!r}")
                return

    def start(self):
        self._thread.start()

    def stop(self):
        self._end.set()
        self._thread.join(60)
