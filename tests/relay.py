"""A relay between a node and those that copy from it: it cuts their connections, delays what they say, or keeps it back."""

import socket
import struct
import threading
import time

HEADER_BYTES = 24
REQUESTS = (0x80, 0x08)


class Relay:
    """Listens on `port`, and hands everything on to `target`. What is set applies to what comes from then on."""

    def __init__(self, target):
        self.target = target
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        # Each new connection takes its limit from here: (requests of the node, bytes of the next one) after which it is cut.
        self.cuts = iter(())
        # Nobody gets through.
        self.mute = False
        self.delay_s = 0
        self.connections = []
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.mute:
                client.close()
                continue
            try:
                node = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            self.connections.append(Connection(self, client, node, next(self.cuts, None)))

    def hold(self):
        """What present connections say to the node is kept back until `Connection.go_on`; returns them."""
        held = [connection for connection in self.connections if connection.open]
        for connection in held:
            connection.flows.clear()
        return held

    def sever(self):
        for connection in self.connections:
            connection.close()

    def stop(self):
        # Closing it alone leaves the thread waiting, which would accept one more.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.sever()


class Connection:
    def __init__(self, relay, client, node, limit):
        self.relay, self.client, self.node, self.limit = relay, client, node, limit
        self.open = True
        self.flows = threading.Event()
        self.flows.set()
        for one in (client, node):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._hand_on, args=(client, node, self.flows), daemon=True).start()
        threading.Thread(target=self._hand_on_frames if limit else self._hand_on, args=(node, client), daemon=True).start()

    def close(self):
        self.open = False
        self.flows.set()
        for one in (self.client, self.node):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def go_on(self):
        self.flows.set()

    def _hand_on(self, source, sink, flows=None):
        try:
            while data := source.recv(1 << 16):
                time.sleep(self.relay.delay_s)
                if flows:
                    flows.wait()
                sink.sendall(data)
        except OSError:
            pass
        self.close()

    def _hand_on_frames(self, source, sink):
        """Frame by frame, until the limit."""
        requests, more_bytes = self.limit
        try:
            with source.makefile("rb") as reader:
                while len(head := reader.read(HEADER_BYTES)) == HEADER_BYTES:
                    frame = head + reader.read(struct.unpack_from(">I", head, 8)[0])
                    if head[0] in REQUESTS:
                        if requests == 0:
                            sink.sendall(frame[:more_bytes])
                            self.relay.cut += 1
                            break
                        requests -= 1
                    sink.sendall(frame)
        except OSError:
            pass
        self.close()
