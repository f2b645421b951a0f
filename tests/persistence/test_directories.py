"""Seen with strace: whenever a directory is created, or a finished one is renamed into place, its parent is synced
before the node reports that it serves, and before `journal restore` and a backup report success."""

import re
import shutil
import signal
import subprocess
import urllib.request

from tests import servers

CALLS = "mkdir,mkdirat,rename,renameat,renameat2,fsync,fdatasync,write"
MADE = re.compile(r'mkdir(?:at)?\((?:AT_FDCWD[^,]*, )?"([^"]+)".* = 0$')
NAMED = re.compile(r'rename(?:at|at2)?\((?:AT_FDCWD[^,]*, )?"[^"]+", (?:AT_FDCWD[^,]*, )?"([^"]+)".* = 0$')
SYNCED = re.compile(r"f(?:data)?sync\(\d+<([^>]+)>\) += 0$")


def trace(path):
    assert shutil.which("strace"), "strace is missing"
    return ["strace", "-D", "-f", "-qq", "-y", "-s", "300", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(path)]


def unsynced(lines, root, until):
    """Names below `root` that were created before the line with `until` without their parent directory being synced."""
    waiting, made = set(), set()
    for line in lines:
        if until in line:
            break
        if match := MADE.search(line) or NAMED.search(line):
            path = match[1].rstrip("/")
            if path.startswith(root) and not path.endswith("endpoints.json"):
                waiting.add(path)
                made.add(path)
        elif match := SYNCED.search(line):
            waiting = {path for path in waiting if path.rpartition("/")[0] != match[1]}
    else:
        raise AssertionError(f"{until!r} was never written")
    return waiting, made


def lines_of(path):
    # Calls interrupted by another thread's are joined in the line in which they end.
    begun, lines = {}, []
    for line in path.read_text(errors="replace").splitlines():
        thread, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[thread] = rest.removesuffix("<unfinished ...>")
        elif match := re.match(r"<\.\.\. \w+ resumed>(.*)", rest):
            lines.append(begun.pop(thread, "") + match[1])
        else:
            lines.append(rest)
    return lines


def test_each_directory_is_synced_into_the_one_around_it(tmp_path):
    root = str(tmp_path)
    data = tmp_path / "a" / "b" / "data"
    log = tmp_path / "serve.trace"
    command = [*trace(log), str(servers.dormouse_binary()), "serve", "--data", str(data), "--bucket", "default,persistent,64MiB"]
    command += ["--memory", "128MiB", "--memcached", "127.0.0.1:0", "--kv", "none", "--http", "127.0.0.1:0"]
    node = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=servers.end_with_the_tests)
    try:
        text = b""
        while b"persistent bucket default" not in text:
            line = node.stdout.readline()
            assert line, text
            text += line
        http = re.search(rb"http://([^/]+)/health", text)[1].decode()
        waiting, made = unsynced(lines_of(log), root, " serves: pid ")
        assert {str(data), str(data.parent), str(data.parent.parent), str(data / "buckets"), str(data / "buckets" / "default")} <= made
        assert not waiting

        request = urllib.request.Request(f"http://{http}/pools/default/buckets/default/backup", b"label=one", method="POST")
        request.add_header("Authorization", "Basic QWRtaW5pc3RyYXRvcjpwYXNzd29yZA==")
        assert urllib.request.urlopen(request, timeout=60).status == 200
    finally:
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0
    lines = lines_of(log) + ["(end)"]
    waiting, made = unsynced(lines, root, "(end)")
    backup = data / "backups" / "default" / "one"
    assert str(backup) in made
    assert not waiting

    log = tmp_path / "restore.trace"
    target = tmp_path / "c" / "d"
    done = subprocess.run([*trace(log), str(servers.dormouse_binary()), "journal", "restore", str(backup), str(target)], capture_output=True, check=True)
    assert b"restored" in done.stdout
    waiting, made = unsynced(lines_of(log), root, ": restored; a node")
    assert {str(target), str(target.parent), str(target / "buckets"), str(target / "buckets" / "default")} <= made
    assert not waiting
