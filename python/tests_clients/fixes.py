"""The fix that the audit prints for a program, done literally."""

from entangle_jax import ordered


def fix_of(report):
    """The one line of code that the report tells to write."""
    fixes = [line.partition("fix: ")[2] for line in str(report).splitlines() if "fix: " in line]
    assert len(fixes) == 1, str(report)
    return fixes[0].split("`")[1]


def mended(report, program):
    """The program after that line."""
    name = program.__name__
    names = {name: program, "ordered": ordered}
    exec(fix_of(report), names)
    return names[name]
