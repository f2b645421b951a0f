#!/usr/bin/env python3
"""Prints the notes of a release: the section of CHANGELOG.md for its version.

    packaging/notes.py [--draft] VERSION

A section has the heading `## VERSION, YYYY-MM-DD`. With --draft `## VERSION, not released yet` will do.
"""

import pathlib
import re
import sys

CHANGELOG = pathlib.Path(__file__).parent.parent / "CHANGELOG.md"
DATE = r"\d{4}-\d{2}-\d{2}"


def section(text, version):
    """What the heading says after the version, and the text below it."""
    found = re.search(rf"(?ms)^## {re.escape(version)}(?:, ([^\n]*))?\n(.*?)(?=^## |\Z)", text)
    if not found:
        raise ValueError(f"CHANGELOG.md has no section ## {version}")
    return found[1] or "", found[2].strip()


def notes(text, version, is_draft=False):
    date, body = section(text, version)
    if not is_draft and not re.fullmatch(DATE, date):
        raise ValueError(f"CHANGELOG.md: ## {version} says {date!r}; a release has its date there, YYYY-MM-DD")
    if not body:
        raise ValueError(f"CHANGELOG.md: nothing is said below ## {version}")
    return f"# Dormouse {version}\n\n{body}\n"


def main(arguments):
    is_draft = arguments[:1] == ["--draft"]
    if len(arguments) != 1 + is_draft:
        return __doc__
    try:
        print(notes(CHANGELOG.read_text(), arguments[-1], is_draft), end="")
    except ValueError as wrong:
        return f"notes.py: {wrong}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
