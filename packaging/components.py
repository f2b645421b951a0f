#!/usr/bin/env python3
"""Prints the components of the programs as a CycloneDX document: every crate that is compiled into them, or into what builds them.

    packaging/components.py [amd64|arm64]

The crates come from `cargo tree --locked`, what is said of each from `cargo metadata`, the checksums from Cargo.lock. Crates that only tests use are left out. A crate that is used
only while compiling, by a build script or as a procedural macro, has the scope `excluded`: it is not in the programs.
"""

import datetime
import json
import os
import pathlib
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).parent.parent
# The packages whose programs are published.
PROGRAMS = ("dormouse", "lab")
TARGETS = {"amd64": "x86_64-unknown-linux-gnu", "arm64": "aarch64-unknown-linux-gnu"}


def metadata(architecture):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGETS[architecture]]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def checksums():
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {(package["name"], package["version"]): package["checksum"] for package in packages if "checksum" in package}


def tree(architecture, edges):
    """Name and version of each crate in the programs' tree with these edges. `cargo metadata` would not do: it resolves features for the
    whole workspace, tests included, and so has crates that nothing compiles."""
    programs = [word for program in PROGRAMS for word in ("--package", program)]
    command = ["cargo", "tree", "--locked", "--target", TARGETS[architecture], *programs, "--edges", edges, "--prefix", "none", "--format", "{p}"]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pairs = (line.split()[:2] for line in text.splitlines() if line)
    return {(name, version.removeprefix("v")) for name, version in pairs}


def component(package, is_linked, checksum):
    name, version = package["name"], package["version"]
    made = {
        "type": "library",
        "bom-ref": f"pkg:cargo/{name}@{version}",
        "name": name,
        "version": version,
        "scope": "required" if is_linked else "excluded",
        "purl": f"pkg:cargo/{name}@{version}",
    }
    if package["license"]:
        # Old manifests separate alternatives by a slash.
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ").replace("  OR  ", " OR ")}]
    if checksum:
        made["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def document(graph, architecture, commit, seconds):
    linked, everything = (tree(architecture, edges) for edges in ("normal,no-proc-macro", "normal,build"))
    packages = {package["id"]: package for package in graph["packages"] if (package["name"], package["version"]) in everything}
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    begin = [identity for identity in graph["workspace_members"] if identity in packages and packages[identity]["name"] in PROGRAMS]
    sums = checksums()
    refs = {identity: f"pkg:cargo/{package['name']}@{package['version']}" for identity, package in packages.items()}
    version = next(packages[identity]["version"] for identity in begin if packages[identity]["name"] == "dormouse")
    ordered = sorted(packages, key=refs.get)
    whole = f"pkg:generic/dormouse@{version}?arch={architecture}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{whole}#{commit}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": whole,
                "name": "dormouse",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
                "properties": [{"name": "dormouse:commit", "value": commit}, {"name": "dormouse:target", "value": TARGETS[architecture]}],
            },
        },
        "components": [
            component(package, (package["name"], package["version"]) in linked, sums.get((package["name"], package["version"])))
            for package in map(packages.get, ordered)
        ],
        "dependencies": [
            {"ref": whole, "dependsOn": sorted(refs[identity] for identity in begin)},
            *({
                "ref": refs[identity],
                "dependsOn": sorted({refs[d["pkg"]] for d in nodes[identity]["deps"] if d["pkg"] in refs and any(k["kind"] != "dev" for k in d["dep_kinds"])}),
            } for identity in ordered),
        ],
    }


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main(arguments):
    architecture = arguments[0] if arguments else "amd64"
    if architecture not in TARGETS or len(arguments) > 1:
        return f"components.py: unknown architecture {' '.join(arguments)}; allowed: {', '.join(TARGETS)}"
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    print(json.dumps(document(metadata(architecture), architecture, git("rev-parse", "HEAD"), seconds), indent=2))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
