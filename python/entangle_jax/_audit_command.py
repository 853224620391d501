"""`python -m entangle_jax audit FILE...`: the audit of XLA's dump files."""

import argparse
import gzip
import io
import json
import os
import sys
import zlib
from pathlib import Path

from entangle_jax import _native
from entangle_jax._audit import COMPILED, WRITTEN, Report, audit_programs

_FLAGS = "XLA_FLAGS='--xla_dump_to=FOLDER --xla_dump_hlo_as_proto'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a program in XLA's proto form: *.hlo.pb, *.hlo_snapshot.pb, also compressed with gzip",
    )
    for option, what in (("--reads", "that uses an object"), ("--writes", "that changes an object")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="[RESOURCE=]TARGET[:OBJECT]",
            help=f"a native target {what}. OBJECT says which: the operands that hold its handle, such as 0 or 0,2 "
            "(default: 0); @NAME, an attribute that names it; or * if all calls of the target touch one object. All "
            "calls of one RESOURCE touch one object, unless OBJECT says otherwise. May be repeated",
        )
    parser.add_argument(
        "--same",
        action="append",
        type=_numbers,
        metavar="N,M",
        help="arguments of the program, by their numbers from 0, that are one object, as the token and the fence of a "
        "Handle are; needed where they have no names. May be repeated; `none` if all are different objects",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--svg", type=Path, metavar="OUT", help="draw the picture of the one program to this file")
    parser.epilog = (
        f"XLA writes such files when it is run with {_FLAGS}.\n"
        "Where one file is a program as written (before optimizations) and another the same one compiled, the two are\n"
        "reported on together.\n"
        "Exit status 0: no race; 1: a race; 2: a file cannot be read, a target is named that no file\n"
        "calls, reads are named and no writes, or arguments without names may be one object."
    )


def run(arguments: argparse.Namespace) -> int:
    """Report on every program. Returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character, as of a path, gets its number.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except BrokenPipeError:  # who reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as error:  # Python exits with status 1 on any error, and that says here that there is a race
        kind = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
        print(f"entangle_jax audit: {kind}{error or type(error).__name__}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    reports = _reports(arguments)
    if arguments.svg:
        if len(reports) != 1:
            raise ValueError(f"--svg draws one program, and the files hold {len(reports)}")
        arguments.svg.write_text(reports[0]._repr_svg_(), encoding="utf-8")
    if arguments.json:
        print(json.dumps([report.to_dict() for report in reports], indent=2))
    else:
        print("\n\n".join(map(str, reports)))
    sys.stdout.flush()
    if any(report.races for report in reports):
        return 1
    if any(report.unnamed_arguments for report in reports):
        print("entangle_jax audit: the arguments have no names; see the report, and say --same", file=sys.stderr)
        return 2
    return 0


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else [int(number) for number in text.split(",")]


def _reports(arguments: argparse.Namespace) -> list[Report]:
    """One report for each program, whose two forms are told by what they hold, not by the names of their files."""
    reads = [_native.Access.parse(text, writes=False) for text in arguments.reads]
    writes = [_native.Access.parse(text, writes=True) for text in arguments.writes]
    modules: dict[tuple[str, int], list[tuple[str, bytes]]] = {}
    called: set[str] = set()
    for file in arguments.files:
        try:
            program = _read(file)
            read = _native.Audit(program, [])
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        form = COMPILED if read.is_scheduled else WRITTEN
        modules.setdefault((read.module, read.id), []).append((form, program))
        called.update(read.targets)
    reports = []
    for programs in modules.values():
        forms = dict(programs)
        if len(forms) == len(programs):
            reported = [{form: forms[form] for form in (WRITTEN, COMPILED) if form in forms}]
        else:  # several programs of one name, from several processes
            reported = [{form: program} for form, program in programs]
        reports += [
            audit_programs(one, reads, writes, same=arguments.same, called_elsewhere=called) for one in reported
        ]
    return reports


def _read(file: Path) -> bytes:
    if file.is_dir():
        raise ValueError("this is a folder, wanted the *.hlo.pb files in it")
    content = file.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"this is compressed with gzip, and damaged or cut short: {error}") from error
    if content.lstrip().startswith((b"HloModule", b"module @", b"module attributes", b"#loc")):
        raise ValueError(f"this is a program as text, wanted its proto form, *.hlo.pb, which XLA writes with {_FLAGS}")
    return content
