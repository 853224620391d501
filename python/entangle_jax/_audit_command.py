"""`python -m entangle_jax audit FILE...`: the audit of XLA's dump files."""

import argparse
import json
import sys
from pathlib import Path

from entangle_jax import _native
from entangle_jax._audit import COMPILED, WRITTEN, Report, TargetSpec, audit_programs

_FLAGS = "XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_proto'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a program in XLA's proto form, *.hlo.pb")
    for option, what in (("--reads", "that uses an object"), ("--writes", "that changes an object")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            type=_target,
            metavar="TARGET[:OPERAND,...]",
            help=f"a native target {what}, and the operands that hold its handles (default: 0); may be repeated",
        )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--svg", type=Path, metavar="OUT", help="draw the picture of the one program to this file")
    parser.epilog = (
        f"XLA writes such files when it is run with {_FLAGS}.\n"
        "Where one file is a program as written (before optimizations) and another the same one compiled, the two are\n"
        "reported on together.\n"
        "Exit status 0: no race; 1: a race; 2: a file cannot be read, or no file calls any target that was given."
    )


def run(arguments: argparse.Namespace) -> int:
    """Report on every program. Returns the exit status."""
    try:
        reports = _reports(arguments.files, arguments.reads, arguments.writes)
        if arguments.svg:
            if len(reports) != 1:
                raise ValueError(f"--svg draws one program, and the files hold {len(reports)}")
            arguments.svg.write_text(reports[0]._repr_svg_())
    except (OSError, ValueError) as error:
        print(f"entangle_jax audit: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([report.to_dict() for report in reports], indent=2))
    else:
        print("\n\n".join(map(str, reports)))
    if any(report.races for report in reports):
        return 1
    if (arguments.reads or arguments.writes) and not any(report.looked for report in reports):
        print("entangle_jax audit: no file calls any of the targets that were given", file=sys.stderr)
        return 2
    return 0


def _target(text: str) -> TargetSpec:
    name, _, operands = text.rpartition(":")
    if name and operands.replace(",", "").isdigit():
        return name, [int(operand) for operand in operands.split(",")]
    return text


def _reports(files: list[Path], reads: list[TargetSpec], writes: list[TargetSpec]) -> list[Report]:
    """One report for each program, whose two forms are told by what they hold, not by the names of their files."""
    modules: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
    for file in files:
        try:
            program = _read(file)
            read = _native.Audit(program, [], [], [])
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        form = COMPILED if read.is_scheduled else WRITTEN
        modules.setdefault((read.module, read.id), []).append((form, program))
    reports = []
    for programs in modules.values():
        forms = dict(programs)
        if len(forms) == len(programs):
            ordered = {form: forms[form] for form in (WRITTEN, COMPILED) if form in forms}
            reports.append(audit_programs(ordered, reads, writes))
        else:  # several programs of one name, from several processes
            reports += [audit_programs({form: program}, reads, writes) for form, program in programs]
    return reports


def _read(file: Path) -> bytes:
    if file.is_dir():
        raise ValueError("this is a folder, wanted the *.hlo.pb files in it")
    content = file.read_bytes()
    if content.lstrip().startswith((b"HloModule", b"module @", b"module attributes", b"#loc")):
        raise ValueError(f"this is a program as text, wanted its proto form, *.hlo.pb, which XLA writes with {_FLAGS}")
    return content
