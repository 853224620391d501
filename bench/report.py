"""Turns measurements into docs/benchmarks.md, docs/benchmarks.json and the plots beside them."""

import json

import matplotlib as mpl
import matplotlib.ticker
from rows import METHODS, PLOTS

COLOURS = dict(zip(METHODS, ("#0072b2", "#d55e00", "#999999", "#009e73", "#cc79a7"), strict=True))
LABELS = {
    "entangle": "entangle",
    "published": "entangle-jax 0.1.1",
    "floor": "floor",
    "barrier": "optimization_barrier",
}

TEXT = """\
# Benchmarks

Every figure is a ratio of two measurements, which were taken in turns, in one run on one machine. To measure again, run
in a checkout:

    ci/bench            # all of it; writes this page, benchmarks.json and the plots
    ci/bench --ordered  # some minutes; writes the table of ordered.md
    ci/bench --short    # a few minutes; writes nothing, fails on ratios far beyond their limits

The script needs a Rust toolchain, Python {python}, a C compiler, and Valgrind for the instruction counts. It makes its
own environments.

The tables compare

* **entangle**: this project;
* **published**: entangle-jax 0.1.1 from PyPI, a different project of the same name;
* **barrier**: `jax.lax.optimization_barrier`, which does not order native calls ([why](why.md));
* **nothing**: the same program without any of these;
* **floor**: an FFI handler in Rust that is given the same operands and aliases and returns at once. No custom call can
  cost less.

## Results

{table}

*Measured* is the median of the ratios of all pairs, and *spread* has the middle half of them. The pairs come from up to
{restarts} starts of the processes, because the place of a process's memory alone changes a ratio by several percent.
The medians behind the ratios:

{medians}

## The handler alone

One call without XLA around it: its instructions, which callgrind counted, and its time, which Criterion measured. There
are as many witnesses as payload leaves; the handler looks only at the payload. With Rust 1.95 on x86-64, 54 of the
instructions of a call with one leaf are the handler's, and the others belong to the loop that calls it. 12 check that
the frame is of the stage EXECUTE and complete, 20 that there is an operand for the result and that the lists can be
read, 19 that both are buffers in the same memory, and 3 return. Fewer instructions would take fewer checks.

{handler}

## Growth

{plots}

## Machine

{machine}
"""


def write(docs, results):
    """Write the page, the plots and the figures as JSON."""
    (docs / "benchmarks").mkdir(exist_ok=True)
    results = rounded(results)
    (docs / "benchmarks.json").write_text(json.dumps(results, indent=1) + "\n")
    draw(docs / "benchmarks", results["plots"])
    about = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = (
        f"{about['processor']}, {about['cores']} cores, {about['system']}; {versions}.\n"
        f"Load average before and after the run: {about['load']:.1f} and {about['load_after']:.1f}."
    )
    (docs / "benchmarks.md").write_text(
        TEXT.format(
            python=".".join(about["versions"]["Python"].split(".")[:2]),
            restarts=results["restarts"],
            table=table(results["rows"], about),
            medians=medians_table(results["rows"]),
            handler=handler_table(results["handler"]),
            plots="\n".join(f"![{plot.title}](benchmarks/{plot.name}.svg)" for plot in PLOTS),
            machine=machine,
        )
    )


def table(rows, about):
    """The rows against their limits, as Markdown."""
    lines = ["| measure | ratio | must reach | measured | spread | |", "| --- | --- | --- | --- | --- | --- |"]
    notes = []
    for row in rows:
        unit = f" {row['unit']}".rstrip()
        verdict = "met" if row["limit"] is not None else ""
        if falls_short(row):
            verdict = f"falls short ({len(notes) + 1})"
            notes.append(f"{len(notes) + 1}. {row['measure']}, {row['compared']}: {reason(row, about)}")
        spread = "exact" if row["exact"] else f"{number(row['low'])} to {number(row['high'])}"
        cells = (
            row["measure"],
            row["compared"],
            f"{row['limit']}{unit} or less" if row["limit"] is not None else "",
            f"**{number(row['value'])}{unit}**",
            spread,
            verdict,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *([""] if notes else []), *notes])


def medians_table(rows):
    """What was measured behind each ratio, as Markdown."""
    lines = ["| measure | median |", "| --- | --- |"]
    seen = {}
    for row in rows:
        if row["medians"]:
            seen.setdefault(row["measure"], (row["medians_unit"], {}))[1].update(row["medians"])
    for measure, (unit, medians) in seen.items():
        lines.append(
            f"| {measure} | {', '.join(f'{name} {quantity(value, unit)}' for name, value in medians.items())} |"
        )
    return "\n".join(lines)


def handler_table(handlers):
    """Instructions and time of the handlers, as Markdown."""
    lines = ["| handler | payload leaves | instructions | time |", "| --- | --- | --- | --- |"]
    for row in handlers:
        instructions = "Valgrind is not installed" if row["instructions"] is None else row["instructions"]
        time = "" if row["ns"] is None else quantity(row["ns"] * 1e-9, "s")
        lines.append(f"| {row['handler']} | {row['leaves']} | {instructions} | {time} |")
    return "\n".join(lines)


def draw(folder, series):
    """One SVG file a plot. The same figures give the same bytes."""
    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "entangle",
            "svg.fonttype": "none",
            "font.size": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib import pyplot as plt  # noqa: PLC0415 (once the backend is chosen)

    for plot, data in zip(PLOTS, series, strict=True):
        figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
        for method, seconds in data["seconds"].items():
            axes.plot(
                data["values"], seconds, "o-", color=COLOURS[method], label=LABELS.get(method, method), markersize=4
            )
        axes.set(title=plot.title, xlabel=plot.label, ylabel="time", xscale="log", yscale="log")
        axes.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
        axes.set_xticks(plot.values, [f"{value:,}" for value in plot.values])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: quantity(value, "s"))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        figure.savefig(folder / f"{plot.name}.svg", metadata={"Date": None})
        plt.close(figure)


def reason(row, about):
    """Why a row falls short, as far as it is known."""
    if row["why"]:
        return row["why"]
    if row["unit"] and about["load"] > about["cores"]:
        return f"an absolute time, taken while the machine had other work (load average {about['load']:.0f})."
    if row["low"] <= row["limit"]:
        return "no more than the noise of this machine, as the spread shows."
    return "the reason is not known yet."


def falls_short(row, margin=1.0):
    """Whether a row misses its limit, with the digits that are shown."""
    return row["limit"] is not None and float(f"{row['value']:.3g}") > row["limit"] * margin


def number(value):
    """Three digits."""
    return f"{value:#.3g}".rstrip(".") if value < 100 else f"{value:,.0f}"


def quantity(value, unit):
    """A value with the prefix that suits it, such as 76 ns or 105 MB."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if abs(value) >= factor:
            return f"{number(value / factor)} {prefix}{unit}"
    return f"{value:g} {unit}"


def rounded(value):
    """Floats with four digits, to keep the file readable."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
