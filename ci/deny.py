"""Licences, bans and sources of the Rust dependencies, as deny.toml has them: what cargo-deny checks with that file.

    python ci/deny.py MANIFEST...

It needs nothing but cargo and Python; cargo-deny takes minutes to build. `ci/deny full` runs that, with advisories.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def packages(manifest, targets):
    """All packages that are built for one of the targets, tests and build scripts included."""
    command = ["cargo", "metadata", "--format-version=1", "--locked", f"--manifest-path={manifest}"]
    found = {}
    for target in targets:
        metadata = json.loads(subprocess.check_output([*command, f"--filter-platform={target}"]))
        used = {node["id"] for node in metadata["resolve"]["nodes"]}
        found |= {package["id"]: package for package in metadata["packages"] if package["id"] in used}
    return list(found.values())


def is_allowed(expression, allowed):
    """Whether an SPDX expression holds if these licences may be chosen."""
    tokens = re.findall(r"\(|\)|AND\b|OR\b|[\w.+-]+(?: WITH [\w.-]+)?", expression.replace("/", " OR "))
    words = [
        each.lower() if each in ("AND", "OR") else each if each in "()" else str(each in allowed) for each in tokens
    ]
    return eval(" ".join(words))  # made of True, False, and, or, ( and ) alone


def problems(manifest, rules):
    licences, bans = rules["licenses"], rules["bans"]
    exceptions = {each["crate"]: each["allow"] for each in licences["exceptions"]}
    skipped = [each["crate"].split("@") for each in bans["skip"]]
    versions = {}
    for package in packages(manifest, rules["graph"]["targets"]):
        name, version, source = package["name"], package["version"], package["source"]
        if source not in (None, CRATES_IO):
            yield f"{name} {version} comes from {source}"
        if source is None:
            continue  # ours
        if not is_allowed(package["license"] or "none", licences["allow"] + exceptions.get(name, [])):
            yield f"{name} {version} has the licence {package['license']}"
        if not any(name == crate and f"{version}.".startswith(f"{skip}.") for crate, skip in skipped):
            versions.setdefault(name, []).append(version)
    for name, those in versions.items():
        if len(those) > 1:
            yield f"{name} is there in the versions {', '.join(those)}"


def main():
    rules = tomllib.loads((Path(__file__).parents[1] / "deny.toml").read_text())
    found = [f"{manifest}: {problem}" for manifest in sys.argv[1:] for problem in problems(manifest, rules)]
    print("\n".join(found) or f"{len(sys.argv) - 1} workspaces: licences, bans and sources are as deny.toml has them")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
