"""A terminal of its own for a program: a tmux server on a socket that belongs to the test."""

import os
import shlex
import shutil
import subprocess
import tempfile
import time

TIMEOUT_S = 30
STEP_S = 0.05


class Screen:
    """A program in a terminal of some size. What it shows is read, and what is typed is sent, by tmux."""

    def __init__(self, *command, columns=100, rows=30):
        self.home = tempfile.mkdtemp(prefix="dormouse-tmux-")
        # The shell stays, so that what is on the terminal after the program can be seen, with its exit code;
        # Ctrl-C is for the program alone.
        script = f"trap : INT; {shlex.join(map(str, command))}; echo \"[exit code $?]\"; exec sleep 600"
        self.tmux("new-session", "-d", "-x", columns, "-y", rows, "sh", "-c", script, start=True)

    def tmux(self, *arguments, start=False):
        environment = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        environment.pop("TMUX", None)
        command = ["tmux", "-u", "-S", f"{self.home}/socket"] + (["-f", "/dev/null"] if start else [])
        done = subprocess.run(command + [str(argument) for argument in arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def text(self):
        return self.tmux("capture-pane", "-p")

    def lines(self):
        return self.text().splitlines()

    def line(self, start):
        """The first line that begins so, without blanks at its beginning."""
        return next((line.strip() for line in self.lines() if line.strip().startswith(start)), None)

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def resize(self, columns, rows):
        self.tmux("resize-window", "-x", columns, "-y", rows)

    def wait(self, shown, timeout_s=TIMEOUT_S):
        """Waits until `shown` is on the screen, or is true of its text, and returns the text."""
        is_shown = shown if callable(shown) else (lambda text: shown in text)
        deadline = time.monotonic() + timeout_s
        while not is_shown(text := self.text()):
            assert time.monotonic() < deadline, f"{shown!r} is not shown:\n{text}"
            time.sleep(STEP_S)
        return text

    def exit_code(self):
        """Waits for the program to end."""
        text = self.wait("[exit code ")
        return int(text.rsplit("[exit code ", 1)[1].split("]")[0])

    def close(self):
        self.tmux("kill-server")
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
