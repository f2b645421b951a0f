"""Sends 40,000 words to dictionary.py, and prints how many per second were answered."""

import socket
import sys
import time

WORDS, BATCH = 40_000, 100
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    answers = connection.makefile("rb")
    start = time.monotonic()
    for first in range(0, WORDS, BATCH):
        connection.sendall(b"".join(b"word-%d\n" % (n * 7919 % 25_000) for n in range(first, first + BATCH)))
        for _ in range(BATCH):
            assert answers.readline().strip().isdigit()
    seconds = time.monotonic() - start
    print(f"{WORDS} words in {seconds:.2f} s: {WORDS / seconds:.0f} words per second")
