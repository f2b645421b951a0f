#!/usr/bin/env python3
"""Draws the README's plots from the committed results, and writes their descriptions and the measured rows of its table.

    python3 docs/results/figures.py            (make figures)

`tests/packaging/test_front_page.py` fails if what is committed differs from what this makes.
"""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
RESULTS = HERE / "paper"
README = ROOT / "README.md"
IMAGES = ROOT / "docs" / "images"

# Colours that people with any kind of colour vision tell apart (Okabe and Ito).
SERVERS = {"dormouse": ("Dormouse", "#0072b2"), "memcached": ("memcached", "#e69f00"), "redis": ("Redis", "#d55e00"), "valkey": ("Valkey", "#009e73")}
WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 20, 20, 84, 40
# Room in a group of bars for the gap to the next.
GAP = 36


def experiment(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def versions():
    """Name and version of each server, as the run found them."""
    found = {}
    for subject in experiment("overhead")["subjects"]:
        found[subject["name"]] = re.search(r"\d+\.\d+\.\d+", subject["version"])[0]
    return found


def three_digits(value):
    """As the lab writes figures: three digits, and no more than are before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def overhead():
    """Bytes per item beyond key and value: {(value's bytes, server): bytes}; keys of 20 bytes, a million items, in memory only."""
    points = experiment("overhead")["points"]
    return {
        (point["shape"]["value_bytes"], point["subject"]): point["overhead_bytes"]
        for point in points
        if point["shape"]["key_bytes"] == 20 and point["items"] == 1_000_000 and not point["persistent"] and not point["sweep"]
    }


def rates():
    """Thousand operations per second of server CPU: {(requests in flight, server): (median, lowest, highest)}; 80 % reads, a million items."""
    return {
        (point["depth"], point["subject"]): tuple(point["per_cpu_second"][part] / 1000 for part in ("median", "low", "high"))
        for point in experiment("throughput")["points"]
        if point["reads_percent"] == 80 and point["items"] == 1_000_000 and not point["tls"]
    }


def text(x, y, words, size=12, anchor="middle", weight="normal", fill="#1a1a1a"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{fill}">{words}</text>'


def plot(title, subtitle, groups, values):
    """Bars in groups. `groups`: [(key, label)]; `values`: {(key, server): value or (value, lowest, highest)}."""
    known = versions()
    as_range = lambda value: value if isinstance(value, tuple) else (value, None, None)
    top = max(part for key, _ in groups for name in SERVERS for part in as_range(values[key, name]) if part)
    height = HEIGHT - TOP - BOTTOM
    place = lambda value: TOP + height * (1 - value / top)
    step = (WIDTH - LEFT - RIGHT) / len(groups)
    bar = (step - GAP) / len(SERVERS)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{title}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        text(LEFT, 24, title, 15, "start", "bold"),
        text(LEFT, 43, subtitle, 12, "start", fill="#555555"),
    ]
    x = LEFT
    for name, (label, colour) in SERVERS.items():
        parts.append(f'<rect x="{x}" y="54" width="11" height="11" fill="{colour}"/>')
        words = f"{label} {known[name]}"
        parts.append(text(x + 16, 64, words, 12, "start"))
        x += 16 + 7 * len(words) + 18
    for number, (key, label) in enumerate(groups):
        begin = LEFT + number * step + GAP / 2
        for index, (name, (_, colour)) in enumerate(SERVERS.items()):
            value, low, high = as_range(values[key, name])
            left, middle = begin + index * bar, begin + (index + 0.5) * bar
            parts.append(f'<rect x="{left + 1:.1f}" y="{place(value):.1f}" width="{bar - 2:.1f}" height="{TOP + height - place(value):.1f}" fill="{colour}"/>')
            if low is not None:
                parts.append(f'<path d="M{middle:.1f} {place(low):.1f}V{place(high):.1f}" stroke="#1a1a1a" stroke-width="1"/>')
            parts.append(text(middle, place(max(value, high or 0)) - 4, three_digits(value), 11, weight="bold" if name == "dormouse" else "normal"))
        parts.append(text(LEFT + (number + 0.5) * step, HEIGHT - 16, label))
    parts.append(f'<path d="M{LEFT} {TOP + height}H{WIDTH - RIGHT}" stroke="#888888" stroke-width="1"/>')
    return "\n".join([*parts, "</svg>", ""])


def plots():
    """The files in docs/images, and what they hold."""
    machine = experiment("overhead")["machine"]
    where = f"{machine['cores']} cores of an {machine['processor']}"
    return {
        "bytes-per-item.svg": plot(
            "Memory per item beyond its key and value, bytes (less is better)",
            f"a million items, keys of 20 bytes; resident memory less that of the empty server; {where}",
            [(1, "values of 1 byte"), (100, "100 bytes"), (256, "256 bytes"), (1024, "1024 bytes")],
            overhead(),
        ),
        "operations.svg": plot(
            "Thousand operations per second of server CPU (more is better)",
            f"80 % reads, 256 bytes, a million items, 50 connections; median and range of 5 starts; {where}",
            [(1, "one request in flight per connection"), (16, "16 in flight"), (64, "64 in flight")],
            rates(),
        ),
    }


def idle_rows():
    found = {finding["subject"]: finding for finding in experiment("idle")["findings"]}
    wake_ups = {name: finding["silences"][0]["voluntary_switches"] for name, finding in found.items()}
    connection = {name: finding["connection_bytes"] for name, finding in found.items()}
    empty = {point["subject"]: point["empty"]["resident_bytes"] for point in reversed(experiment("overhead")["points"]) if not point["persistent"]}
    cells = lambda form, values: [form(values[name]) for name in SERVERS]
    return {
        "wake-ups in a minute at rest (`lab idle`)": cells(str, wake_ups),
        "bytes of memory per idle connection (`lab idle`)": cells(lambda value: f"{value:.0f}", connection),
        "memory of the empty server (`lab overhead`)": cells(lambda value: f"{three_digits(value / 2**20)} MiB", empty),
    }


def ovsdb_rows():
    points = {point["subject"]: point for point in experiment("ovsdb")["points"] if point["case"] == "update1-mon"}
    both = lambda form: [form(points["dormouse"]), f"{form(points['stock'])}; with tcmalloc {form(points['stock-tcmalloc'])}"]
    return {
        "CPU of an OVSDB update that ten clients follow (`lab ovsdb`)": both(lambda point: f"{three_digits(point['cpu_ns_per_unit']['median'] / 1000)} us"),
        "memory after 250,000 such updates (`lab ovsdb`)": both(lambda point: f"{three_digits(point['end_bytes'] / 2**20)} MiB"),
    }


def rows():
    """The measured rows of the README's table, by their first cell."""
    made = {}
    for label, (dormouse, memcached, redis, valkey) in idle_rows().items():
        made[label] = f"| {label} | {dormouse} | {memcached} | {redis} | {valkey} | not measured | not measured |"
    for label, (dormouse, stock) in ovsdb_rows().items():
        made[label] = f"| {label} | {dormouse} | | | | | {stock} |"
    return made


def descriptions():
    """What stands in the place of a plot where it is not shown, by its file."""
    memory, operations = overhead(), rates()
    ranges = []
    for name, (label, _) in SERVERS.items():
        bytes_of = [value for (_, server), value in memory.items() if server == name]
        ranges.append(f"{label} {min(bytes_of):.0f} to {max(bytes_of):.0f}")
    each = lambda depth: ", ".join(f"{label} {operations[depth, name][0]:.0f}" for name, (label, _) in SERVERS.items())
    return {
        "bytes-per-item.svg": f"Bytes of memory per item beyond its key and value: {', '.join(ranges)}",
        "operations.svg": f"Thousand operations per second of server CPU: one request in flight, {each(1)}; 64 in flight, {each(64)}",
    }


def with_rows(readme):
    """The README with these rows in the place of those with the same first cell, and these descriptions."""
    made = rows()
    for file, words in descriptions().items():
        readme, found = re.subn(rf"!\[[^\]]*\]\(docs/images/{re.escape(file)}\)", f"![{words}](docs/images/{file})", readme)
        if found != 1:
            raise ValueError(f"README.md shows {file} {found} times")
    lines = readme.split("\n")
    for number, line in enumerate(lines):
        label = line.split(" | ")[0].removeprefix("| ")
        if label in made:
            lines[number] = made.pop(label)
    if made:
        raise ValueError(f"README.md has no row {', '.join(made)}")
    return "\n".join(lines)


if __name__ == "__main__":
    for name, drawing in plots().items():
        (IMAGES / name).write_text(drawing)
    README.write_text(with_rows(README.read_text()))
