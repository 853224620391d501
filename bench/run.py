"""Takes the measurements: pairs in turns, in processes that are started anew several times. See ci/bench."""

import argparse
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import ordered_table
import report
from rows import PLOTS, ROWS, Row

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | {
    "JAX_PLATFORMS": "cpu"
}


class Workers:
    """The processes that run programs, by method, number of devices and what they import, started when first needed."""

    def __init__(self, options):
        self.options = options
        self.processes = {}
        self.versions = {}

    def sample(self, method, devices, *, alone=False, **request):
        """One measurement, in the unit that the program measures."""
        side = "published" if method == "published" else "entangle"
        key = (side, devices, request["program"] if alone else "")
        process = self.processes.get(key)
        if process is None:
            python = self.options.published if side == "published" else sys.executable
            flags = f"--xla_force_host_platform_device_count={devices}"
            process = subprocess.Popen(
                [python, HERE / "worker.py", self.options.build / "release" / library_name()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT | {"XLA_FLAGS": flags},
            )  # fmt: skip
            self.processes[key] = process
            self.versions = json.loads(process.stdout.readline())
        order = "entangle" if method == "published" else method
        process.stdin.write(json.dumps({"order": order, **request}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            sys.exit(f"bench: the process of {method} died at {request}")
        return json.loads(answer)

    def close(self):
        """End all processes."""
        for process in self.processes.values():
            process.stdin.close()
            process.wait()
        self.processes.clear()


def library_name():
    return {"Darwin": "libentangle_bench.dylib"}.get(platform.system(), "libentangle_bench.so")


def measure_rows(workers, rows, restarts, share):
    """Each row, `restarts` times in new processes, whose memory is laid out anew."""
    pairs = [[] for _ in rows]
    also = [{method: [] for method in row.also} for row in rows]
    for restart in range(restarts):
        for row, those, others in zip(rows, pairs, also, strict=True):
            if restart >= row.restarts:
                continue
            say(f"{restart + 1}/{restarts}  {row.measure}: entangle / {row.over}")
            request = {"program": row.program, "seconds": row.seconds, "alone": row.alone}
            sides = [("entangle", row.sizes), (row.over, row.over_sizes or row.sizes)]
            for turn in range(max(1, int(row.rounds * share))):
                # In turns, and each goes first every other time.
                ordered = sides if turn % 2 == 0 else sides[::-1]
                values = [workers.sample(method, row.devices, sizes=sizes, **request) for method, sizes in ordered]
                those.append(values if turn % 2 == 0 else values[::-1])
            for method, samples in others.items():
                turns = range(max(1, int(row.rounds * share) // 4))
                samples += [workers.sample(method, row.devices, sizes=row.sizes, **request) for _ in turns]
        workers.close()
    results = []
    for row, those, others in zip(rows, pairs, also, strict=True):
        results.append(summary(row, those, others))
        if row.whole is not None:
            measure, limit = row.whole
            results.append(figure(measure, limit, [a for a, _ in those], "s") | {"why": row.why})
    return results


def summary(row, pairs, others):
    """The median of the ratios of pairs, and between which values half of them lie."""
    ratios = [a / b for a, b in pairs]
    low, value, high = quartiles(ratios)
    medians = {"entangle": statistics.median(a for a, _ in pairs), row.over: statistics.median(b for _, b in pairs)}
    if row.over_sizes is not None:
        medians = {side: statistics.median(pair[i] for pair in pairs) for i, side in enumerate(row.sides)}
    medians |= {method: statistics.median(samples) for method, samples in others.items()}
    return {
        "measure": row.measure,
        "compared": f"entangle / {row.over}" if row.over_sizes is None else " / ".join(row.sides),
        "limit": row.limit,
        "value": value,
        "low": low,
        "high": high,
        "pairs": len(pairs),
        "unit": "",
        "medians": medians,
        "medians_unit": row.unit,
        "exact": row.exact,
        "why": row.why,
    }


def figure(measure, limit, values, unit, *, exact=False):
    """A row of the table that is no ratio."""
    low, value, high = quartiles(values)
    return {
        "measure": measure,
        "compared": "entangle",
        "limit": limit,
        "value": value,
        "low": low,
        "high": high,
        "pairs": len(values),
        "unit": unit,
        "medians": {},
        "exact": exact,
        "why": "",
    }


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3


def measure_import(options, rounds):
    """The time of `import entangle_jax` in a process that has imported jax."""

    def run(python, code):
        return subprocess.run([python, "-c", code], env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout

    new = "import sys, jax; before = set(sys.modules); import entangle_jax; print(*(set(sys.modules) - before))"
    modules = sorted(m for m in run(sys.executable, new).split() if m.startswith("jax.") and "._" not in m)
    timed = "import time, jax{}; start = time.perf_counter(); import entangle_jax; print(time.perf_counter() - start)"
    alone = timed.format("".join(f", {module}" for module in modules))
    whole = timed.format("")
    times = {"alone": [], "entangle": [], "published": []}
    for _ in range(rounds):
        say("import")
        times["alone"].append(float(run(sys.executable, alone)))
        times["entangle"].append(float(run(sys.executable, whole)))
        times["published"].append(float(run(options.published, whole)))
    needed = (
        f"beyond {', '.join(f'`{m}`' for m in modules)}" if modules else "which needs no other public module of jax"
    )
    return [
        figure(f"`import entangle_jax` after `import jax`, {needed}", 10, [1e3 * t for t in times["alone"]], "ms"),
        summary(
            Row("`import entangle_jax` after `import jax`, in all", "import", "published", 0.7),
            list(zip(times["entangle"], times["published"], strict=True)),
            {},
        ),
    ]


def measure_wheel(wheel):
    return figure("size of the wheel", 1, [wheel.stat().st_size / 2**20], "MB", exact=True)


def measure_handler(build):
    """The handlers without XLA: instructions by callgrind, nanoseconds by Criterion where it has run."""
    rows = []
    for name, leaves in itertools.product(("entangle", "floor"), (1, 10, 100)):
        estimates = build / "criterion" / "handler" / name / str(leaves) / "new" / "estimates.json"
        nanoseconds = json.loads(estimates.read_text())["median"]["point_estimate"] if estimates.exists() else None
        rows.append(
            {"handler": name, "leaves": leaves, "instructions": instructions(build, name, leaves), "ns": nanoseconds}
        )
    return rows


def instructions(build, name, leaves):
    """Instructions of one call: what 1,000 calls more cost, so that starting the process does not count."""
    if shutil.which("valgrind") is None:
        return None

    def count(calls):
        program = [build / "release" / "examples" / "instructions", name, str(leaves), str(calls)]
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        output = subprocess.run([*tool, *program], check=True, capture_output=True, text=True).stderr
        return int(re.search(r"Collected : (\d+)", output)[1])

    return round((count(2_000) - count(1_000)) / 1_000)


def measure_plots(workers):
    series = []
    for plot in PLOTS:
        lines = {method: [] for method in plot.methods}
        for value in plot.values:
            say(f"plot {plot.name}: {value}")
            samples = {method: [] for method in plot.methods}
            for _ in range(plot.rounds):
                for method in plot.methods:
                    samples[method].append(workers.sample(
                        method, plot.devices, program=plot.program, sizes=plot.sizes_at(value), seconds=plot.seconds
                    ))  # fmt: skip
            for method in plot.methods:
                lines[method].append(statistics.median(samples[method]))
        series.append({"name": plot.name, "values": plot.values, "seconds": lines})
    workers.close()
    return series


def machine():
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = re.search(r"model name\s*:\s*(.*)", info.read_text() + "\nmodel name: " + model)[1]
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "load": os.getloadavg()[0],
    }


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--short", action="store_true", help="few samples; write nothing; fail on ratios far beyond their limits"
    )
    parser.add_argument(
        "--ordered", action="store_true", help="only what is of `ordered` and marks; write the table of docs/ordered.md"
    )
    parser.add_argument("--published", type=Path, required=True, help="the interpreter that has the published package")
    parser.add_argument("--build", type=Path, required=True, help="where cargo built bench/")
    parser.add_argument("--wheel", type=Path, required=True)
    options = parser.parse_args()

    about = machine()
    workers = Workers(options)
    restarts, share = (1, 0.1) if options.short else (2, 1) if options.ordered else (5, 1)
    rows = [row for row in ROWS if (row.short or not options.short) and (row.ordered or not options.ordered)]
    results = measure_rows(workers, rows, restarts, share)
    if options.ordered:
        about |= {"load_after": os.getloadavg()[0], "versions": workers.versions}
        ordered_table.write(HERE.parent, report.rounded({"machine": about, "restarts": restarts, "rows": results}))
        return
    results += [*measure_import(options, 3 if options.short else 15), measure_wheel(options.wheel)]
    about["load_after"] = os.getloadavg()[0]
    about["versions"] = {"Python": platform.python_version(), **workers.versions, "rustc": rustc()}
    print(report.table(results, about))
    handler = measure_handler(options.build)
    print(report.handler_table(handler))
    if options.short:
        far = [row["measure"] for row in results if report.falls_short(row, 1 if row["exact"] else 3)]
        sys.exit(f"bench: far beyond the limit: {'; '.join(far)}" if far else 0)
    plots = measure_plots(workers)
    report.write(
        HERE.parent / "docs",
        {"machine": about, "restarts": restarts, "rows": results, "handler": handler, "plots": plots},
    )


def rustc():
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]


if __name__ == "__main__":
    main()
