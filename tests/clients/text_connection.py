"""One connection that speaks memcached text and shows flags and CAS, which client libraries hide."""

import socket


class TextConnection:
    def __init__(self, address, timeout_s=10):
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.reader = self.socket.makefile("rb")

    def close(self):
        self.reader.close()
        self.socket.close()

    def line(self, command, value=None):
        """Sends one command and returns its one-line answer."""
        self.socket.sendall(command + b"\r\n" + (b"" if value is None else value + b"\r\n"))
        return self.reader.readline().removesuffix(b"\r\n")

    def store(self, verb, key, value, flags=0, expiry=0, cas=None):
        tail = b"" if cas is None else b" %d" % cas
        return self.line(b"%s %s %d %d %d%s" % (verb, key, flags, expiry, len(value), tail), value)

    def set(self, key, value, flags=0, expiry=0):
        answer = self.store(b"set", key, value, flags, expiry)
        assert answer == b"STORED", answer

    def gets(self, *keys):
        """{key: (value, flags, cas)}"""
        self.socket.sendall(b"gets " + b" ".join(keys) + b"\r\n")
        found = {}
        while (line := self.reader.readline()) != b"END\r\n":
            _, key, flags, size, cas = line.split()
            value = self.reader.read(int(size) + 2)[:-2]
            found[key] = (value, int(flags), int(cas))
        return found

    def get(self, key):
        return self.gets(key).get(key)

    def ttl(self, key):
        """Seconds left, -1 without expiry, None if there is no such item."""
        answer = self.line(b"mg %s t" % key)
        return None if answer == b"EN" else int(answer.removeprefix(b"HD t"))
