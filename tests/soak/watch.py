"""What the server's memory does while the load runs.

Sampled once a second:
    resident    Rss of /proc/PID/smaps_rollup: the whole process, connection buffers and program included
    live        `payload` + `metadata` of `stats memory`: keys, values and item headers
    in flight   `in_flight` of `stats memory`: large items being received, connection buffers
    allocated   `allocated` of `stats memory`: what the allocator handed out for items and index
"""

import dataclasses
import threading
import time

from tests.clients.text_connection import TextConnection

INTERVAL_S = 1.0


@dataclasses.dataclass(frozen=True)
class Sample:
    at_s: float
    resident: int
    live: int
    allocated: int
    items: int
    in_flight: int


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
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def memory(self):
        self.text.socket.sendall(b"stats memory\r\n")
        figures = {}
        while (line := self.text.reader.readline()) != b"END\r\n":
            if not line.startswith(b"STAT "):
                raise RuntimeError(f"stats memory: {line!r}")
            _, name, value = line.split()
            figures[name.decode()] = int(value)
        return figures

    def sample(self):
        figures = self.memory()
        one = Sample(
            time.monotonic() - self.began, resident(self.node.pid), figures["payload"] + figures["metadata"], figures["allocated"], figures["items"],
            figures["in_flight"],
        )
        self.samples.append(one)
        return one

    def _run(self):
        while not self._end.wait(INTERVAL_S):
            try:
                self.sample()
            except Exception as error:
                self.problems.append(f"watching: {error!r}")
                return

    def start(self):
        self._thread.start()

    def stop(self):
        self._end.set()
        self._thread.join(60)
