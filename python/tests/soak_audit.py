"""Audits thousands of random programs, in processes of their own, and says what came of them: see `random_checks`.

    python soak_audit.py [--programs 5000] [--devices 500] [--handle 500] [--first NUMBER] [--jobs 2] [--log FILE]

Programs are made from the numbers FIRST, FIRST + 1, ...; without --first from a number drawn at random, which is printed.
With --log what is done is noted, and a run that was interrupted goes on where it stopped. Exit status 1 if one fails.
"""

import argparse
import collections
import concurrent.futures
import json
import random
import subprocess
import sys
import warnings
from pathlib import Path

BATCH = 50  # a process keeps what it has compiled, so it is ended after so many


def work(kind, numbers):
    """In a process of its own: one line for each program."""
    import conftest  # noqa: F401 (the number of devices)
    import random_checks

    warnings.simplefilter("ignore")
    for number in numbers:
        print(json.dumps([number, random_checks.KINDS[kind](number).value]), flush=True)


def batch(kind, numbers):
    """What came of these programs; what ends the process comes of the one that it was at."""
    todo, came = list(numbers), []
    while todo:
        command = [sys.executable, __file__, "--work", kind, *map(str, todo)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        came += lines
        todo = todo[len(lines) :]
        if todo:
            came.append([todo.pop(0), f"ended with status {done.returncode}: {done.stderr[-2000:]}"])
    return kind, came


def main():
    """Share the batches out, and sum up."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--programs", type=int, default=5_000)
    options.add_argument("--devices", type=int, default=500)
    options.add_argument("--handle", type=int, default=500)
    options.add_argument("--first", type=int)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--log", type=Path)
    asked = options.parse_args()
    noted = (
        [json.loads(line) for line in asked.log.read_text().splitlines()] if asked.log and asked.log.exists() else []
    )
    first = noted[0] if noted else random.randrange(2**31) if asked.first is None else asked.first
    if asked.log and not noted:
        asked.log.write_text(json.dumps(first) + "\n")
    came = {kind: {} for kind in ("random", "devices", "handle")}
    for kind, lines in noted[1:]:
        came[kind].update(lines)
    with concurrent.futures.ThreadPoolExecutor(asked.jobs) as pool:
        batches = []
        for kind, count in (("handle", asked.handle), ("devices", asked.devices), ("random", asked.programs)):
            todo = [number for number in range(first, first + count) if number not in came[kind]]
            batches += [pool.submit(batch, kind, todo[i : i + BATCH]) for i in range(0, len(todo), BATCH)]
        for done in concurrent.futures.as_completed(batches):
            kind, lines = done.result()
            came[kind].update(lines)
            if asked.log:
                with asked.log.open("a") as log:
                    log.write(json.dumps([kind, lines]) + "\n")
    sys.exit(summary(first, came))


def summary(first, came):
    """Print what came of them all; 1 if something is wrong."""
    import random_checks

    failed = False
    for kind, of in came.items():
        counts = collections.Counter(of.values())
        print(f"{kind}: {len(of)} programs from number {first}")
        for outcome in random_checks.Outcome:
            print(f"  {counts.pop(outcome, 0):6} {outcome}")
        good = set(random_checks.Outcome) - random_checks.FAILURES
        for number, outcome in sorted(of.items()):
            if outcome not in good:
                failed = True
                print(f"  FAILED {number}: {outcome}")
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], map(int, sys.argv[3:]))
    else:
        main()
