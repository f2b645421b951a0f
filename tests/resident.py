"""`/memory` beside the kernel's count of the process."""

import concurrent.futures
import json
import pathlib
import time
import urllib.request

# Between two looks at the RSS.
LOOK_S = 0.0005
# A busy machine keeps the looks waiting while the RSS moves by many megabytes; a wrong account is as wrong the next time.
TRIES = 3


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
    """By which fraction `/memory` is away from the RSS, the least of a few tries."""
    least = 1
    for _ in range(TRIES):
        least = min(least, deviation_once(node))
        if least == 0:
            break
    return least


def deviation_once(node):
    """By which fraction `/memory` is away from the RSS while it was asked for: from all that was seen of it, and everything between."""
    seen = [resident_bytes(node)]
    with concurrent.futures.ThreadPoolExecutor(1) as asking:
        answer = asking.submit(memory_of, node)
        while not answer.done():
            seen.append(resident_bytes(node))
            time.sleep(LOOK_S)
        memory = answer.result()
    seen.append(resident_bytes(node))
    check_adds_up(memory)
    told = memory["residentBytes"]
    return max(min(seen) - told, told - max(seen), 0) / max(seen)
