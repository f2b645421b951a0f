"""Runs commands of the binary."""

import base64
import pathlib
import subprocess
import urllib.error
import urllib.request

from tests.servers import dormouse_binary

TIMEOUT_S = 60


def address(node):
    return "{}:{}".format(*node.http)


def run(*arguments):
    return subprocess.run([str(dormouse_binary()), *map(str, arguments)], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S)


class Operator:
    """Somebody who types commands for one node, with one login."""

    def __init__(self, node, user=None, password_file=None):
        self.login, self.headers = ["--node", address(node)], {}
        self.base = f"http://{address(node)}"
        if user:
            self.login += ["--user", user, "--password-file", str(password_file)]
            login = f"{user}:{pathlib.Path(password_file).read_text().splitlines()[0]}"
            self.headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()

    def run(self, *arguments):
        return run(*arguments, *self.login)

    def does(self, *arguments):
        """What a command prints that succeeds."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), (arguments, done)
        return done.stdout

    def fails(self, *arguments, code=1):
        """The one line of a command that fails."""
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done)
        assert done.stderr.startswith("dormouse: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    def rows(self, *arguments):
        """The cells of a table without its titles, by their first one."""
        lines = [line.split() for line in self.does(*arguments).splitlines()]
        return {cells[0]: cells[1:] for cells in lines[1:]}

    def http(self, method, path, form=None):
        """The status of a request with this login."""
        request = urllib.request.Request(self.base + path, form and form.encode(), self.headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
