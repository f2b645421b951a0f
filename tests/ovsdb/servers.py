"""The two ovsdb-servers as child processes: Debian's (`Stock`) and ours (`Subject`: `dormouse ovsdb-server`).

Both get the same command line, run in the foreground, and keep everything in a directory of their own: database files,
`sock`, `ctl` and `log`. A child is only ever terminated by the process id that this file started.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tests.servers import StartFailed, dormouse_binary, end_with_the_tests

# A busy machine may stall for a while: no test depends on shorter times than this.
PATIENCE_S = int(os.environ.get("OVSDB_PATIENCE_S", "120"))
STOCK, SUBJECT = "stock", "subject"
SCHEMAS = pathlib.Path("/usr/share/openvswitch")


def import_ovs():
    """Debian's Python bindings are outside the virtual environment; the path is appended, so that nothing else
    changes."""
    path = "/usr/lib/python3/dist-packages"
    if path not in sys.path:
        sys.path.append(path)


def server_command(kind):
    return [shutil.which("ovsdb-server") or "/usr/sbin/ovsdb-server"] if kind == STOCK else [str(dormouse_binary()), "ovsdb-server"]


def tool(*arguments, check=True, **named):
    """Runs Debian's ovsdb-tool; returns its standard output."""
    done = subprocess.run(["ovsdb-tool", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, **named)
    if check and done.returncode != 0:
        raise AssertionError(f"ovsdb-tool {' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}")
    return done.stdout


class OvsdbServer:
    """One server for the database files `databases` (paths, created before); `sock` is its Unix socket."""

    def __init__(self, kind, directory=None, arguments=(), databases=(), remotes=None, wrap=(), environment=None):
        self.kind = kind
        self.directory = pathlib.Path(directory or tempfile.mkdtemp(prefix=f"ovsdb-{kind}-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.arguments = tuple(map(str, arguments))
        self.databases = [pathlib.Path(path) for path in databases]
        self.sock, self.ctl, self.log_path = self.directory / "sock", self.directory / "ctl", self.directory / "log"
        self.remotes = remotes if remotes is not None else [f"punix:{self.sock}"]
        self.wrap = tuple(wrap)
        self.environment = environment
        self.process = None

    def command(self):
        return [
            *self.wrap, *server_command(self.kind), "-vconsole:off", "-vsyslog:off", f"--log-file={self.log_path}", f"--unixctl={self.ctl}",
            *(f"--remote={remote}" for remote in self.remotes), *self.arguments, *map(str, self.databases),
        ]

    def start(self):
        for path in (self.sock, self.ctl):
            path.unlink(missing_ok=True)
        self.errors = open(self.directory / "stderr", "ab")
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors, preexec_fn=end_with_the_tests,
            cwd=self.directory, env=dict(os.environ, OVS_RUNDIR=str(self.directory), OVS_LOGDIR=str(self.directory), **(self.environment or {})),
        )
        self.wait_ready()
        return self

    def wait_ready(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            probe = socket.socket(socket.AF_UNIX)
            try:
                probe.connect(str(self.ctl))
                if any(str(self.sock) in remote for remote in self.remotes):
                    with socket.socket(socket.AF_UNIX) as second:
                        second.connect(str(self.sock))
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise StartFailed(f"{' '.join(self.command())}\nexit code {self.process.poll()}\n{self.log()}\n{self.stderr()}") from None
                time.sleep(0.005)
            finally:
                probe.close()

    @property
    def pid(self):
        return self.process.pid

    def server_pid(self):
        """The server's own process id, if it runs under `wrap` (strace)."""
        if not self.wrap:
            return self.process.pid
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:] if self.log_path.exists() else ""

    def stderr(self):
        path = self.directory / "stderr"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def status(self, key):
        """One number of /proc/PID/status, such as VmRSS in kB."""
        for line in pathlib.Path(f"/proc/{self.server_pid()}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
        raise KeyError(key)

    def appctl(self, *arguments):
        """(exit code, standard output, standard error) of ovs-appctl on this server."""
        done = subprocess.run(["ovs-appctl", "-t", str(self.ctl), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stdout, done.stderr

    def unixctl(self, command, *arguments):
        """As `appctl`, without a process: returns the answer's (result, error)."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE_S)
            peer.connect(str(self.ctl))
            peer.sendall(json.dumps({"id": 0, "method": command, "params": list(arguments)}).encode())
            text = b""
            while True:
                piece = peer.recv(65536)
                text += piece
                try:
                    answer = json.loads(text)
                except ValueError:
                    if piece:
                        continue
                    raise ConnectionError(f"unixctl {command}: closed after {text!r}") from None
                return answer.get("result"), answer.get("error")

    def exit(self):
        """Requests an exit through unixctl and returns the exit code."""
        if self.alive():
            try:
                self.unixctl("exit")
            except OSError:
                pass
        return self._wait()

    def kill(self):
        if self.alive():
            os.kill(self.server_pid(), signal.SIGKILL)
        return self._wait()

    def _wait(self):
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.kind} does not end") from None

    def remove(self):
        if self.process is not None:
            self.kill()
            self.errors.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self.start() if self.process is None else self

    def __exit__(self, *_):
        self.remove()


def create_database(path, schema):
    """Creates a database file from a schema (a JSON object, or the path of an .ovsschema file)."""
    path = pathlib.Path(path)
    if isinstance(schema, dict):
        source = path.with_suffix(".ovsschema")
        source.write_text(json.dumps(schema))
    else:
        source = pathlib.Path(schema)
    tool("create", path, source)
    return path
