"""The hostile connections of an attack: a process of its own, which waits for all of them at once.

Connections greet first. When all have, or GREET_S have passed, they wait for the start; from then on each sends what its talk has next
as soon as the answer before has come. A connection that the server closes, or whose talk has ended, is opened again.
"""

import collections
import ctypes
import heapq
import multiprocessing
import resource
import select
import socket
import time

GREET_S = 5
REOPEN_S = 0.05
UNREAD_S = 0.05
READ_BYTES = 256 << 10
KEPT_BYTES = 4096
OPEN_FILES = 8192
# Phases.
GREETING, ATTACKING, OVER = range(3)


class Shared:
    """What the processes of a run have in common: the phase; how many connections have greeted; how many hostile requests, and how many
    turns of hostile connections, have been answered."""

    def __init__(self):
        self.phase = multiprocessing.RawValue(ctypes.c_int, GREETING)
        self.greeted = multiprocessing.RawValue(ctypes.c_int, 0)
        self.answered = multiprocessing.RawValue(ctypes.c_uint64, 0)
        self.turns = multiprocessing.RawValue(ctypes.c_uint64, 0)


class Connection:
    def __init__(self, crowd, number):
        self.crowd, self.number = crowd, number
        self.socket, self.ask, self.talk = None, None, None
        self.greeted = False

    def open(self):
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(self.crowd.address)
        self.crowd.by_descriptor[self.socket.fileno()] = self
        self.crowd.epoll.register(self.socket, select.EPOLLIN)
        self.talk = None
        greeting = self.crowd.attack.greeting
        if greeting is None:
            self.greet_done()
        else:
            self.send(greeting(self.number))

    def greet_done(self):
        if not self.greeted:
            self.greeted = True
            self.crowd.shared.greeted.value += 1
        self.talk = self.crowd.attack.talk(self.number)
        if self.crowd.shared.phase.value == GREETING:
            self.crowd.waiting.append(self)
        else:
            self.go_on()

    def go_on(self, answer=None):
        try:
            ask = self.talk.send(answer)
        except StopIteration:
            return self.close(0)
        self.send(ask)

    def send(self, ask):
        self.ask, self.kept, self.last, self.left = ask, b"", b"", None
        self.unsent = memoryview(ask.data)
        if ask.unread:
            self.crowd.later(UNREAD_S, self.close, 0)
        self.flush()

    def flush(self):
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            return self.close(REOPEN_S)
        reads = 0 if self.ask.unread else select.EPOLLIN
        self.crowd.epoll.modify(self.socket, reads | (select.EPOLLOUT if self.unsent else 0))

    def ready(self, events):
        if events & select.EPOLLIN:
            try:
                data = self.socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.crowd.closed += 1
                return self.close(REOPEN_S)
            self.take(data)
        elif events & (select.EPOLLERR | select.EPOLLHUP):
            self.crowd.closed += 1
            self.close(REOPEN_S)
        elif events & select.EPOLLOUT:
            self.flush()

    def take(self, data):
        ends = self.ask.ends
        if len(self.kept) < KEPT_BYTES:
            self.kept += data[: KEPT_BYTES - len(self.kept)]
        if ends is None:
            done = self.take_http(len(data))
        else:
            self.last = data[-len(ends) :] if len(data) >= len(ends) else (self.last + data)[-len(ends) :]
            done = self.last == ends
        if done:
            self.answered()

    def take_http(self, length):
        """Returns true if the answer is whole; its head must be in what is kept."""
        if self.left is None:
            head, found, _ = self.kept.partition(b"\r\n\r\n")
            if not found:
                return False
            _, named, rest = head.lower().partition(b"\r\ncontent-length:")
            # Without a length it ends with the connection.
            body = int(rest.split(b"\r\n", 1)[0]) if named else 1 << 62
            self.left = len(head) + 4 + body
        self.left -= length
        return self.left <= 0

    def answered(self):
        answer, crowd = self.kept, self.crowd
        if self.talk is None:
            if (refused := refusal(answer, self.ask)) is not None:
                crowd.statuses[f"greeting {refused}"] += 1
            return self.greet_done()
        crowd.shared.answered.value += self.ask.requests
        crowd.shared.turns.value += 1
        crowd.statuses[status(answer, self.ask)] += 1
        self.go_on(answer)

    def close(self, reopen_s):
        if self.socket is not None:
            self.crowd.by_descriptor.pop(self.socket.fileno(), None)
            self.socket.close()
            self.socket = None
            self.crowd.later(reopen_s, self.open)


def status(answer, ask):
    """The status of the first answer, as it is shown."""
    if ask.ends is None:
        return answer[9:12].decode()
    return f"{answer[6:8].hex()}" if answer[:1] in b"\x81\x18" else answer.split(b" ", 1)[0].split(b"\r", 1)[0][:16].decode(errors="replace")


def refusal(answer, ask):
    """The first status of a greeting's answers that is none of success."""
    if answer[:1] not in b"\x81\x18":
        return None if answer.startswith(b"STORED") else status(answer, ask)
    at = 0
    while at < len(answer):
        if answer[at + 6 : at + 8] != b"\0\0":
            return status(answer[at:], ask)
        at += 24 + int.from_bytes(answer[at + 8 : at + 12], "big")
    return None


class Crowd:
    def __init__(self, attack, address, shared):
        self.attack, self.address, self.shared = attack, address, shared
        self.epoll = select.epoll()
        self.by_descriptor, self.timers, self.waiting = {}, [], []
        self.statuses, self.closed, self.timer_numbers = collections.Counter(), 0, 0

    def later(self, seconds, do, *arguments):
        self.timer_numbers += 1
        heapq.heappush(self.timers, (time.monotonic() + seconds, self.timer_numbers, do, arguments))

    def run(self):
        for number in range(self.attack.connections):
            Connection(self, number).open()
        while (phase := self.shared.phase.value) != OVER:
            if phase == ATTACKING and self.waiting:
                started, self.waiting = self.waiting, []
                for one in started:
                    if one.socket is not None:
                        one.go_on()
            for descriptor, events in self.epoll.poll(0.02):
                if (one := self.by_descriptor.get(descriptor)) is not None:
                    one.ready(events)
            now = time.monotonic()
            while self.timers and self.timers[0][0] <= now:
                _, _, do, arguments = heapq.heappop(self.timers)
                do(*arguments)


def run(attack, address, shared, results):
    """The process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    crowd = Crowd(attack, address, shared)
    crowd.run()
    results.send((dict(crowd.statuses), crowd.closed))


class Attackers:
    """That process, from its greetings to its end."""

    def __init__(self, attack, address, shared):
        self.attack, self.shared = attack, shared
        self.results, results = multiprocessing.Pipe(False)
        self.process = multiprocessing.Process(target=run, args=(attack, address, shared, results), daemon=True)
        self.process.start()
        deadline = time.monotonic() + GREET_S
        while shared.greeted.value < attack.connections and time.monotonic() < deadline and self.process.is_alive():
            time.sleep(0.01)

    def start(self):
        self.shared.phase.value = ATTACKING

    def stop(self):
        """Ends it; returns how many answers began with each status, and how many connections the server has closed."""
        self.shared.phase.value = OVER
        found = self.results.recv() if self.results.poll(20) else ({"no result": 1}, 0)
        self.process.join(20)
        return found
