"""A small server: it keeps words that clients send and answers how often each came. One line in, one line out."""

import socketserver
import sys

counts = {}


class Lines(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            word = line.strip()
            counts[word] = counts.get(word, 0) + 1
            self.wfile.write(b"%d\n" % counts[word])


with socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), Lines) as server:
    print("ready", flush=True)
    server.serve_forever()
