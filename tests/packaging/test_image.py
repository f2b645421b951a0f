"""The image's archive: its layer, its configuration, and that it is the same each time. (`make image` has the static binary.)"""

import base64
import hashlib
import http.client
import io
import json
import os
import re
import subprocess
import tarfile
import time

from tests import servers

ARCHIVE = servers.ROOT / "packaging/container/archive.sh"


def archive(directory, umask):
    binary = directory / "root/usr/bin/dormouse"
    binary.parent.mkdir(parents=True)
    binary.write_bytes(b"a program")
    binary.chmod(0o755)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "ARCHITECTURE": "arm64"}
    subprocess.run(["bash", "-c", f"umask {umask}; exec {ARCHIVE} {directory} localhost/dormouse:test"], env=environment, check=True)
    return (directory / "dormouse.tar").read_bytes()


def test_the_archive_is_the_same_in_any_directory_and_has_what_it_says(tmp_path):
    first, second = archive(tmp_path / "a", "022"), archive(tmp_path / "b/deeper", "077")
    assert first == second
    with tarfile.open(fileobj=io.BytesIO(first)) as image:
        [manifest] = json.load(image.extractfile("manifest.json"))
        config = json.load(image.extractfile(manifest["Config"]))
        [layer] = manifest["Layers"]
        layer = image.extractfile(layer).read()
    assert manifest["RepoTags"] == ["localhost/dormouse:test"]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]
    assert config["architecture"] == "arm64"
    about = config["config"]
    assert about["User"] == "65532:65532" and about["Healthcheck"]["Test"] == ["CMD", "/usr/bin/dormouse", "status", "--health"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        members = {member.name: (member.uid, member.gid, oct(member.mode)) for member in files}
        assert len(members) == len(files.getmembers()), "a file is there twice"
    assert members["./var/lib/dormouse"] == (65532, 65532, "0o700")
    assert members["./tmp"] == (0, 0, "0o1777")
    assert members["./usr/bin/dormouse"] == members["./usr"] == (0, 0, "0o755")
    assert members["./etc/dormouse/dormouse.toml"] == (0, 0, "0o644")


def default_command(home):
    """What the image runs, with its files in a directory."""
    config = json.loads((ARCHIVE.parent / "image.json").read_text().replace("LAYER", ""))["config"]
    text = (ARCHIVE.parent / "dormouse.toml").read_text().replace("/run/secrets", str(home))
    # Any free ports, as tests run beside each other.
    (home / "dormouse.toml").write_text(re.sub(r'":(11211|11210|8091)"', '"127.0.0.1:0"', text))
    places = {"/etc/dormouse/dormouse.toml": str(home / "dormouse.toml"), "/var/lib/dormouse": str(home / "data")}
    return config["Entrypoint"], [places.get(argument, argument) for argument in config["Cmd"]]


def test_the_image_serves_nobody_without_a_login(tmp_path):
    entrypoint, command = default_command(tmp_path)
    assert entrypoint == ["/usr/bin/dormouse"] and command[0] == "serve" and "--testcontainers" not in command
    without = subprocess.run([servers.dormouse_binary(), *command], capture_output=True, text=True, timeout=20)
    assert without.returncode != 0 and f"auth.password_file = \"{tmp_path}/dormouse-password\"" in without.stderr, without
    password = tmp_path / "dormouse-password"
    password.write_text("correct-horse\n")
    password.chmod(0o600)
    with subprocess.Popen([servers.dormouse_binary(), *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            endpoints = tmp_path / "data" / "endpoints.json"
            deadline = time.monotonic() + 20
            while not endpoints.exists():
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            [address] = json.loads(endpoints.read_text())["http"]
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            right = {"Authorization": "Basic " + base64.b64encode(b"Administrator:correct-horse").decode()}
            for method, path, body, headers, expected in (
                ("GET", "/health", None, {}, 200),
                ("GET", "/pools", None, {}, 401),
                ("POST", "/settings/web", "username=eve&password=secret-1", form, 401),
                ("GET", "/pools", None, right, 200),
            ):
                connection = http.client.HTTPConnection(*servers.split_address(address), timeout=10)
                connection.request(method, path, body, headers)
                assert connection.getresponse().status == expected, path
                connection.close()
        finally:
            process.terminate()
