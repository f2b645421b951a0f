"""`/memory` beside the kernel's count of the process."""

import json
import pathlib
import urllib.request


def resident_bytes(node):
    status = pathlib.Path(f"/proc/{node.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def memory_of(node):
    host, port = node.http
    with urllib.request.urlopen(f"http://{host}:{port}/memory") as answer:
        return json.load(answer)


def check_adds_up(memory):
    """The parts of anything add up to it."""

    def check(part):
        inner = part.get("parts", [])
        assert not inner or sum(one["bytes"] for one in inner) == part["bytes"], part
        for one in inner:
            check(one)

    for one in memory["parts"]:
        check(one)
    assert sum(one["bytes"] for one in memory["parts"]) == memory["residentBytes"], memory


def deviation(node):
    """By which fraction `/memory` is away from the RSS just before and just after, and everything between them."""
    before, memory, after = resident_bytes(node), memory_of(node), resident_bytes(node)
    check_adds_up(memory)
    told = memory["residentBytes"]
    least, most = min(before, after), max(before, after)
    return max(least - told, told - most, 0) / most
