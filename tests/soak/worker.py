"""One process of the load: its share of the connections, each a loop of random operations on its own keys."""

import asyncio
import random
import socket
import time

from . import client, values
from .shadow import Shadow

OWN_KEYS = 400
SHARED_KEYS = 3000
CUT_SHARE = 0.01
RUDE_EVERY = 37
RUDE_PAUSE_S = 8.0


class Tally(dict):
    """Counts events; `wrong` holds descriptions of the first errors."""

    def __init__(self):
        super().__init__()
        self.wrong = []

    def add(self, name, count=1):
        self[name] = self.get(name, 0) + count

    def fail(self, text):
        self.add("wrong")
        if len(self.wrong) < 20:
            self.wrong.append(text)


def client_for(number, endpoints):
    kind = number // 2 % 10
    if kind < 5:
        return client.KvClient(endpoints["kv"])
    if kind < 8:
        return client.TextClient(endpoints["memcached"])
    return client.BinaryClient(endpoints["memcached"])


class Connection:
    def __init__(self, number, endpoints, seed, tally):
        self.number = number
        self.client = client_for(number, endpoints)
        self.chooser = random.Random(f"{seed}/{number}")
        self.tally = tally
        self.shadow = Shadow()

    def own_key(self):
        return b"own-%d-%d" % (self.number, self.chooser.randrange(OWN_KEYS))

    def any_key(self):
        return self.own_key() if self.chooser.random() < 0.7 else b"shared-%d" % self.chooser.randrange(SHARED_KEYS)

    async def run(self, stop_at):
        while time.monotonic() < stop_at:
            try:
                if self.client.writer is None:
                    await self.client.open()
                    self.tally.add("connections")
                await self.step()
            except client.Wrong as error:
                self.tally.fail(str(error))
                self.client.close()
            except OSError as error:
                self.tally.fail(f"connection {self.number}: {error!r}")
                self.client.close()
                await asyncio.sleep(0.1)
        self.client.close()

    async def step(self):
        shape = self.chooser.random()
        if shape < CUT_SHARE:
            await self.cut()
        elif shape < 0.40:
            await self.store()
        elif shape < 0.90:
            await self.fetch()
        elif shape < 0.95:
            await self.remove()
        else:
            await self.touch()

    def new_value(self, key):
        length = values.size(self.chooser, self.client.largest)
        expiry_s = self.chooser.randint(1, 20) if self.chooser.random() < 0.2 else 0
        deadline = time.monotonic() + expiry_s if expiry_s else None
        return values.pattern(key, length), expiry_s, deadline

    async def store(self):
        key = self.any_key()
        value, expiry_s, deadline = self.new_value(key)
        try:
            outcome = await self.client.store(key, value, values.flags(key), expiry_s)
        except BaseException:
            self.shadow.maybe_wrote(key, len(value), deadline)
            raise
        self.tally.add("store")
        self.tally.add("bytes written", len(value))
        if outcome == client.DONE:
            self.shadow.wrote(key, len(value), deadline if deadline is None else time.monotonic() + expiry_s)
        elif outcome == client.REFUSED:
            self.tally.add("refused")
            # A refused set may have removed the old value, or kept it.
        else:
            self.tally.fail(f"set of {key!r}: {outcome}")

    async def fetch(self):
        keys = list({self.any_key() for _ in range(self.chooser.choice((1, 1, 1, 2, 8)))})
        asked_at = time.monotonic()
        found = await self.client.fetch(keys)
        self.check(keys, found, asked_at)

    def check(self, keys, found, asked_at):
        """A value may have expired by the time it arrives, but not before it was requested."""
        self.tally.add("fetch", len(keys))
        self.tally.add("hit", len(found))
        for key, (value, flags) in found.items():
            problem = values.problem(key, value, flags) if key in keys else f"{key!r} was not asked for"
            if problem is None and key.startswith(b"own-"):
                problem = self.shadow.problem(key, len(value), asked_at)
            if problem:
                self.tally.fail(problem)

    async def remove(self):
        key = self.own_key()
        outcome = await self.client.remove(key)
        self.tally.add("remove")
        if outcome == client.REFUSED:
            self.tally.fail(f"delete of {key!r} refused")
        self.shadow.removed(key)

    async def touch(self):
        key = self.own_key()
        expiry_s = self.chooser.choice((0, 5, 60))
        deadline = time.monotonic() + expiry_s if expiry_s else None
        self.shadow.touched(key, deadline, surely=False)
        outcome = await self.client.touch(key, expiry_s)
        self.tally.add("touch")
        if outcome == client.DONE:
            self.shadow.touched(key, deadline if deadline is None else time.monotonic() + expiry_s)

    async def cut(self):
        """Cuts off a request at a random byte, and closes the connection."""
        key = self.own_key()
        value, expiry_s, deadline = self.new_value(key)
        data = self.client.store_bytes(key, value, values.flags(key), expiry_s)
        if self.chooser.random() < 0.3:
            data = self.client.fetch_bytes([self.any_key() for _ in range(20)]) + data
        self.shadow.maybe_wrote(key, len(value), deadline)
        self.tally.add("cut")
        try:
            await self.client.send_part(data, self.chooser.randint(1, len(data)))
        finally:
            self.client.close()


class RudeConnection(Connection):
    """Requests a lot of data and does not read it for a while; then reads all of it, or disconnects."""

    async def step(self):
        keys = [b"shared-%d" % self.chooser.randrange(SHARED_KEYS) for _ in range(200)]
        one = self.client.writer.get_extra_info("socket")
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.client.writer.transport.pause_reading()
        batches = [keys[at : at + 20] for at in range(0, len(keys), 20)]
        asked_at = time.monotonic()
        for batch in batches:
            self.client.writer.write(self.client.fetch_bytes(batch))
        await asyncio.sleep(RUDE_PAUSE_S * self.chooser.random())
        self.tally.add("rude")
        if self.chooser.random() < 0.5:
            self.client.close()
            return
        self.client.writer.transport.resume_reading()
        for batch in batches:
            try:
                found = await self.client.guarded(self.read_batch(batch))
            except client.Closed:
                # What the node may do to a peer that takes nothing while memory is short. It counts those.
                self.tally.add("rude cut off")
                self.client.close()
                return
            self.check(batch, found, asked_at)

    async def read_batch(self, batch):
        if isinstance(self.client, client.TextClient):
            return await self.client.read_values()
        found = {}
        for _ in batch:
            status, extras, value = await self.client.response()
            if self.client.outcome(status) == client.DONE:
                found[batch[self.client.opaque]] = (value, int.from_bytes(extras[:4], "big"))
        return found


def run(numbers, endpoints, seed, stop_at, results):
    """Entry point of the process; puts (counts, descriptions of what went wrong) into `results`."""
    tally = Tally()

    async def everything():
        makers = [RudeConnection if number % RUDE_EVERY == 7 else Connection for number in numbers]
        await asyncio.gather(*(maker(number, endpoints, seed, tally).run(stop_at) for maker, number in zip(makers, numbers)))

    try:
        asyncio.run(everything())
    except BaseException as error:
        tally.fail(f"the driver itself failed: {error!r}")
    results.put((dict(tally), tally.wrong))
