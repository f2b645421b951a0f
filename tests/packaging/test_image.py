"""The image's archive: its layer, its configuration, and that it is the same each time. (`make image` has the static binary.)"""

import hashlib
import io
import json
import os
import subprocess
import tarfile

from tests import servers

ARCHIVE = servers.ROOT / "packaging/container/archive.sh"


def archive(directory, umask):
    binary = directory / "root/usr/bin/dormouse"
    binary.parent.mkdir(parents=True)
    binary.write_bytes(b"a program")
    binary.chmod(0o755)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
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
    about = config["config"]
    assert about["User"] == "65532:65532" and about["Healthcheck"]["Test"] == ["CMD", "/usr/bin/dormouse", "status", "--health"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        members = {member.name: (member.uid, member.gid, oct(member.mode)) for member in files}
        assert len(members) == len(files.getmembers()), "a file is there twice"
    assert members["./var/lib/dormouse"] == (65532, 65532, "0o700")
    assert members["./tmp"] == (0, 0, "0o1777")
    assert members["./usr/bin/dormouse"] == members["./usr"] == (0, 0, "0o755")
    assert members["./etc/dormouse/dormouse.toml"] == (0, 0, "0o644")
