"""dormouse-openvswitch: our server in the place of the stock one and back, on live files, by ovs-ctl and ovn-ctl."""

import os
import pathlib
import subprocess

import pytest

from tests.packaging.conftest import install, run

OVS_CTL, OVN_CTL = "/usr/share/openvswitch/scripts/ovs-ctl", "/usr/share/ovn/scripts/ovn-ctl"
STOCK, KEPT = pathlib.Path("/usr/sbin/ovsdb-server"), pathlib.Path("/usr/sbin/ovsdb-server.stock")


@pytest.fixture
def command(installed):
    path = "/usr/sbin/dormouse-openvswitch"
    if not os.path.exists(path):
        install(installed("dormouse-openvswitch", 1))
    yield path
    if os.path.exists(path):
        run(path, "off")
    assert STOCK.exists() and not KEPT.exists() and not STOCK.is_symlink()


@pytest.fixture
def environment(tmp_path):
    """Directories of the test's own for both projects' scripts."""
    places = {f"{project}_{kind}": str(tmp_path / project / kind) for project in ("OVS", "OVN") for kind in ("RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR")}
    for place in places.values():
        os.makedirs(place)
    (tmp_path / "OVS/SYSCONFDIR/openvswitch").mkdir()
    environment = {**os.environ, **places}
    yield environment
    subprocess.run([OVN_CTL, "stop_ovsdb"], env=environment, capture_output=True)
    subprocess.run([OVS_CTL, "--no-ovs-vswitchd", "stop"], env=environment, capture_output=True)


def ovs_ctl(environment, action):
    run(OVS_CTL, "--no-ovs-vswitchd", "--no-monitor", "--system-id=test", "--no-record-hostname", action, env=environment)


def program_of(environment, pid_file):
    pid = (pathlib.Path(environment["OVS_RUNDIR" if "ovsdb" in pid_file else "OVN_RUNDIR"]) / pid_file).read_text().strip()
    return os.readlink(f"/proc/{pid}/exe")


def vsctl(environment, *words):
    return run("ovs-vsctl", f"--db=unix:{environment['OVS_RUNDIR']}/db.sock", "--no-wait", *words).split()


def nbctl(environment, *words):
    return run("ovn-nbctl", f"--db=unix:{environment['OVN_RUNDIR']}/ovnnb_db.sock", *words).split()


def test_there_and_back_on_live_files(command, environment):
    ovs_ctl(environment, "start")
    run(OVN_CTL, "start_ovsdb", env=environment)
    assert program_of(environment, "ovsdb-server.pid") == str(STOCK)
    vsctl(environment, "add-br", "stock")
    nbctl(environment, "ls-add", "stock")

    assert subprocess.run([command, "status"], capture_output=True).returncode == 3
    assert "restart" in run(command, "on"), "systemd does not run here"
    ovs_ctl(environment, "restart")
    run(OVN_CTL, "restart_ovsdb", env=environment)
    for pid_file in ("ovsdb-server.pid", "ovnnb_db.pid", "ovnsb_db.pid"):
        assert program_of(environment, pid_file) == "/usr/bin/dormouse"
    assert vsctl(environment, "list-br") == ["stock"]
    vsctl(environment, "add-br", "ours")
    nbctl(environment, "ls-add", "ours")
    said = run(command, "status")
    # OVN's servers each have a monitor.
    assert "in place: Dormouse" in said and said.count(": Dormouse (/usr/bin/dormouse)") >= 3 and "stock" not in said, said

    run(command, "off")
    ovs_ctl(environment, "restart")
    run(OVN_CTL, "restart_ovsdb", env=environment)
    for pid_file in ("ovsdb-server.pid", "ovnnb_db.pid", "ovnsb_db.pid"):
        assert program_of(environment, pid_file) == str(STOCK)
    assert vsctl(environment, "list-br") == ["ours", "stock"]
    assert {"(ours)", "(stock)"} <= set(nbctl(environment, "ls-list"))


def test_twice_is_once_and_removal_puts_the_stock_server_back(command):
    before = STOCK.read_bytes()
    assert "already" in run(command, "off")
    run(command, "on", "--no-restart")
    assert "already" in run(command, "on")
    assert STOCK.readlink() == pathlib.Path("/usr/bin/dormouse") and KEPT.read_bytes() == before
    run("dpkg", "--remove", "dormouse-openvswitch")
    assert not STOCK.is_symlink() and STOCK.read_bytes() == before and not KEPT.exists()


def test_an_upgrade_of_ours_or_of_open_vswitch_leaves_it_in_place(command, packages):
    run(command, "on", "--no-restart")
    install(packages("dormouse", 2), packages("dormouse-openvswitch", 2))
    assert STOCK.is_symlink()
    install("--reinstall", "openvswitch-common")
    assert STOCK.is_symlink() and KEPT.exists()


def test_a_clustered_database_is_refused(command):
    cluster = pathlib.Path("/var/lib/ovn/clustered-for-a-test.db")
    cluster.parent.mkdir(exist_ok=True)
    run("ovsdb-tool", "create-cluster", cluster, "/usr/share/ovn/ovn-nb.ovsschema", "tcp:127.0.0.1:6643")
    try:
        done = subprocess.run([command, "on"], capture_output=True, text=True)
        assert done.returncode == 1 and str(cluster) in done.stderr and not STOCK.is_symlink(), done
    finally:
        cluster.unlink()


def test_an_interruption_leaves_a_server_and_can_be_finished_or_undone(command):
    before = STOCK.read_bytes()
    divert = ("dpkg-divert", "--quiet", "--package", "dormouse-openvswitch", "--divert", KEPT, "--no-rename", "--add", STOCK)
    run(*divert)
    assert subprocess.run([command, "status"], capture_output=True).returncode == 3 and STOCK.read_bytes() == before
    run(command, "off")
    run(*divert)
    os.link(STOCK, KEPT)
    assert "Dormouse is in the place" in run(command, "on", "--no-restart") and KEPT.read_bytes() == before
    # `off`, between its steps.
    os.rename(KEPT, STOCK)
    run(command, "off")
    assert STOCK.read_bytes() == before and not KEPT.exists()


def test_off_says_if_the_stock_server_is_gone(command):
    run(command, "on", "--no-restart")
    kept = KEPT.read_bytes()
    KEPT.unlink()
    done = subprocess.run([command, "off"], capture_output=True, text=True)
    assert done.returncode == 1 and "reinstall openvswitch-common" in done.stderr
    KEPT.write_bytes(kept)
    KEPT.chmod(0o755)


@pytest.mark.parametrize("words", [[], ["onn"], ["on", "--restart"], ["on", "--no-restart", "now"]])
def test_mistakes_are_usage(command, words):
    done = subprocess.run([command, *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("Usage:") and not STOCK.is_symlink()
