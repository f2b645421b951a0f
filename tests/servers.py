"""The servers under test and the peer they are compared with, as child processes.

`Dormouse` starts the binary named by the environment variable DORMOUSE (default: target/quick/dormouse) with every port
chosen by the kernel, and reads the ports from DATA/endpoints.json, or without a data directory from the banner.
`Memcached` starts the binary named by MEMCACHED (default: Debian's memcached) on a free port.

Both are context managers. A child is only ever terminated by the process id that this file started.
"""

import contextlib
import ctypes
import fnmatch
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 20


PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def end_with_the_tests():
    """Runs in the child: the server dies with the test process, however that ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # A background run ignores these signals, and its children would inherit that.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class StartFailed(Exception):
    """The server exited, or did not serve in time; carries its log."""


def dormouse_binary():
    return pathlib.Path(os.environ.get("DORMOUSE", ROOT / "target" / "quick" / "dormouse"))


def memcached_binary():
    return os.environ.get("MEMCACHED") or shutil.which("memcached")


def memcached_version():
    """E.g. (1, 6, 18)."""
    said = subprocess.run([memcached_binary(), "-V"], capture_output=True, text=True, check=True).stdout
    return tuple(map(int, re.search(r"(\d+)\.(\d+)\.(\d+)", said).groups()))


def _ports():
    """Those below what the system gives to clients, one after the other; each process of a test run has its own part."""
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw7")[2:]) % 8
    begin = random.SystemRandom().randrange(2_700)
    for number in itertools.count(begin):
        yield 10_000 + 2_700 * part + number % 2_700


_PORTS = _ports()


def free_port():
    """A port that nobody listens at, and that nobody is given meanwhile."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def split_address(address):
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def wait_listening(address, process, timeout_s=START_TIMEOUT_S):
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise StartFailed(f"nothing listens on {address}; exit code {process.poll()}") from None
            time.sleep(0.02)


class Memcached:
    """memcached, the oracle of the differential test."""

    def __init__(self, *arguments):
        self.address = ("127.0.0.1", free_port())
        command = [memcached_binary(), "-l", self.address[0], "-p", str(self.address[1]), "-U", "0", "-t", "2"]
        if os.getuid() == 0:
            command += ["-u", "root"]
        self.process = subprocess.Popen(
            command + list(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=end_with_the_tests,
        )
        wait_listening(self.address, self.process)
        # Each of its two threads takes its turn, so that `watch connevents` does not begin with the end of that connection.
        for _ in range(2):
            with socket.create_connection(self.address, timeout=START_TIMEOUT_S) as one:
                one.sendall(b"quit\r\n")
                assert one.recv(1) == b""

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        if self.alive():
            self.process.terminate()
        return self.process.wait(STOP_TIMEOUT_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Dormouse:
    """One node: `memcached`, `kv` and `http` are (host, port) pairs of its first listener of each kind."""

    def __init__(
        self, *arguments, buckets=("default,ephemeral,256MiB",), memory=None, workers=2, config=None, home=None, ports=None, wrap=(), await_ready=True,
        has_data=True,
    ):
        """`home`: a directory that is kept, so that a node can be restarted in it. `ports` ({"kv": 12345}): a number is
        used instead of a kernel-chosen port, "none" disables the port, None passes no argument for it. `wrap`: a
        command prefix. Without `await_ready` the node is only spawned; without `has_data` it has no data directory."""
        self.keeps_data = home is not None
        self.data = pathlib.Path(home or tempfile.mkdtemp(prefix="dormouse-test-"))
        self.log_path = self.data / "server.log"
        command = [*wrap, str(dormouse_binary()), "serve"]
        if config is not None:
            path = self.data / "dormouse.toml"
            path.write_text(config)
            command += ["--config", str(path)]
        for kind in ("memcached", "kv", "http"):
            port = (ports or {}).get(kind, 0)
            if port is not None:
                command += [f"--{kind}", port if port == "none" else f"127.0.0.1:{port}"]
        self.has_data = has_data
        if has_data:
            command += ["--data", str(self.data / "node")]
        command += ["--workers", str(workers)]
        if memory:
            command += ["--memory", memory]
        for bucket in buckets:
            command += ["--bucket", bucket]
        (self.data / "node").mkdir(exist_ok=True)
        self.command = command + list(arguments)
        with open(self.log_path, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_the_tests
            )
        if await_ready:
            self._learn_endpoints()

    def _learn_endpoints(self):
        self.endpoints = self._wait_endpoints()
        first = [(listeners or [None])[0] for listeners in map(self.endpoints.get, ("memcached", "kv", "http"))]
        self.memcached = first[0] and split_address(first[0]["address"])
        self.kv, self.http = (address and split_address(address) for address in first[1:])
        self.address = self.memcached

    def _wait_endpoints(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise StartFailed(f"{' '.join(self.command)}\nexit code {self.process.returncode}\n{self.log()}")
            try:
                endpoints = json.loads((self.data / "node" / "endpoints.json").read_text()) if self.has_data else self._banner()
                # A killed node leaves its file behind.
                if endpoints["pid"] == self.process.pid:
                    return endpoints
            except (FileNotFoundError, ValueError):
                pass
            time.sleep(0.02)
        self.process.kill()
        self.process.wait()
        raise StartFailed(f"{' '.join(self.command)}\nno endpoints within {START_TIMEOUT_S} s\n{self.log()}")

    def _banner(self):
        """The addresses of plain ports, as endpoints.json has them."""
        banner, end, _ = self.log().partition("\n  user ")
        if not end:
            raise ValueError("no banner yet")
        memcached = [{"address": address, "bucket": bucket} for address, bucket in re.findall(r"^  memcached  (\S+:\d+)  bucket (\S+);", banner, re.M)]
        kv, http = (re.findall(pattern, banner, re.M) for pattern in (r"^  Couchbase  couchbase://(\S+:\d+)$", r"^  HTTP +http://([^/ ]+)/"))
        return {"pid": self.pid, "memcached": memcached, "kv": kv, "http": http}

    @property
    def pid(self):
        return self.process.pid

    def memcached_of(self, bucket):
        for listener in self.endpoints["memcached"]:
            if listener["bucket"] == bucket:
                return split_address(listener["address"])
        raise KeyError(bucket)

    def switches(self, names="*"):
        """How often each of its threads of these names has slept, by its id."""
        texts = {task.name: (task / "status").read_text() for task in pathlib.Path(f"/proc/{self.pid}/task").iterdir()}
        name_of = lambda text: text.split("\n", 1)[0].removeprefix("Name:\t")
        return {
            task: int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for task, text in texts.items() if fnmatch.fnmatch(name_of(text), names)
        }

    def log(self, bytes_most=8000):
        """The log of this node, without that of earlier nodes in the same home."""
        return self.log_path.read_bytes()[self.log_start :][-bytes_most:].decode(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def stop(self):
        """Stops the node with SIGTERM, kills it if it does not exit, and returns its exit code."""
        if self.alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.last_log = self.log()
        if not self.keeps_data:
            shutil.rmtree(self.data, ignore_errors=True)
        return code

    def kill(self):
        """Sends SIGKILL: the node gets no chance to clean up."""
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
