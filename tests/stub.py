"""An HTTP server in the place of a node, that answers what a test says."""

import contextlib
import http.server
import threading


class Stub(http.server.BaseHTTPRequestHandler):
    """A subclass answers in its `do_GET`."""

    protocol_version = "HTTP/1.1"

    def answer(self, code, text):
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(handler):
    """Serves on a port of its own; yields the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "127.0.0.1:%d" % server.server_address[1]
    server.shutdown()
    server.server_close()
