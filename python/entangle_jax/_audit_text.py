"""A report in words, as a table, and as a picture in the DOT language."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from entangle_jax import _native
    from entangle_jax._audit_report import Call, Entangle, Lost, Moved, Object, Race, Report

_MAX_OBJECTS = 8
"""So many objects that were taken for different ones are named."""

UNNAMED = (
    "The arguments have no names here, so the audit cannot tell which two of them are the token and the fence of one "
    "Handle, and took them for different objects: this is no proof. Say which are one object with `same=[(0, 1)]`, or "
    "with `--same 0,1` on the command line; `same=()`, or `--same none`, if all are different objects."
)
"""What cannot be told."""

_LOOKS = {
    "entangle": 'shape=ellipse, fillcolor="#eeeeee"',
    "write": 'shape=box, fillcolor="#ffe8c0"',
    "read": 'shape=box, fillcolor="#d8ecff"',
}


def table(report: Report) -> str:
    """Races and the fix for each, what was taken for different objects, lost calls, what each `entangle` cost."""
    races = count(len(report.races) + report.more_races, "race") if report.looked else "not looked for races"
    native = [sum(c.kind != "entangle" for c in report.calls if c.program == program) for program in report.programs]
    lines = [
        f"{report.module} ({' and '.join(report.programs)}): {races}, {count(native[0], 'native call')}"
        f"{f' ({native[-1]} compiled)' if native[-1] != native[0] else ''}, "
        f"{count(len(report.entangles), 'entangle call')}"
    ]
    if not report.looked:
        lines.append(nothing(report))
    elif report.not_called:
        lines.append(f"Given, but not called here: {', '.join(report.not_called)}. {_others(report)}")
    if len(report.programs) == 1:
        lines.append(_half(report))
    if report.unnamed_arguments:
        lines.append(UNNAMED)
    lines += _assumed(report)
    lines += _races(report)
    for mark in report.unused_marks:
        lines += [
            "",
            f"LOST  {mark}",
            "      dropped: JAX found nothing that needs its result, and it has no side effect, or nothing runs it",
        ]
    if report.only_read:
        lines += [
            "",
            f"Only read here, so in no order: {', '.join(map(repr, report.only_read))}. No marked call writes it.",
        ]
    for lost in report.lost:
        lines += ["", f"LOST  {lost.call}", f"      {_fate(lost)}"]
    for moved in report.moved:
        lines += ["", f"MOVED {moved.call}", f"      {_move(moved)}"]
    if report.entangles:
        lines += ["", *_costs(report.entangles)]
    return "\n".join(lines)


def nothing(report: Report) -> str:
    """Why nothing was looked at."""
    given = ", ".join(report.not_called)
    what = f"of the targets given, {given}, none is called here" if given else "no targets were given"
    return f"{what}, so no order was looked at: name them in `reads` and `writes`. {_others(report)}"


def dot(report: Report, graph: _native.Graph) -> str:
    """The last program of the report: native calls as boxes, data paths as arrows, races in red."""
    program = report.programs[-1]
    calls = [call for call in report.calls if call.program == program]
    drawn = calls[: len(calls) - graph.more]
    lines = [f"digraph {_quoted(report.module)} {{", '  node [style=filled, fontname="sans-serif"];']
    for call in drawn:
        where = f"{call.source.file.rpartition('/')[2]}:{call.source.line}" if call.sources else ""
        label = "\\n".join(part for part in (call.target, where) if part)
        lines.append(f'  n{call.index} [label="{label}", {_LOOKS[call.kind]}];')
    lines += [f"  n{first} -> n{second};" for first, second in graph.edges]
    in_picture = [
        race
        for race in report.races
        if race.first.program == program and max(race.first.index, race.second.index) < len(drawn)
    ]
    for race in [race for race in in_picture if not race.follows] or in_picture:
        label = "race in the next iteration" if race.loop else "race"
        ends = f"n{race.first.index} -> n{race.second.index}"
        lines.append(f'  {ends} [label="{label}", color=red, fontcolor=red, dir=both];')
    return "\n".join([*lines, "}"])


def count(number: int, what: str) -> str:
    """`no races`, `1 race`, `2 races`."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _others(report: Report) -> str:
    return f"Other targets that are called: {', '.join(report.not_given) or 'none'}."


def _half(report: Report) -> str:
    if report.programs == ("compiled",):
        return "Only the compiled program was looked at: calls that XLA merged or dropped are not seen."
    return "Only the program as written was looked at: what XLA makes of it, and who waits for whom then, is not seen."


def _assumed(report: Report) -> list[str]:
    """The objects that were taken for different ones."""
    if not report.looked:
        return []
    objects = [one for one in report.objects if one.program == report.programs[-1]]
    objects = _not_covered(objects)
    names = {one.name for one in objects}
    different = [one for one in objects if len(names.intersection(one.may_be)) < len(objects) - 1]
    if not different:
        return []
    lines = [f"  {one.name}: {_users(one)}" for one in different[:_MAX_OBJECTS]]
    if len(different) > _MAX_OBJECTS:
        lines.append(f"  and {len(different) - _MAX_OBJECTS} more, see `objects`")
    return ["Taken for different objects, which no program can prove:", *lines]


def _not_covered(objects: Sequence[Object]) -> list[Object]:
    """Without the objects whose calls all do the same to another one, and more: those of calls both named and marked.

    It makes no difference whether such two are one.
    """
    done = [{(call, writes) for writes in (False, True) for call in _calls_of(one, writes)} for one in objects]
    by_call: dict[object, list[set[tuple[Call, bool]]]] = {}
    for does in done:
        for each in does:
            by_call.setdefault(each, []).append(does)
    return [
        one
        for one, does in zip(objects, done, strict=True)
        if not any(does < others for others in by_call.get(next(iter(does), None), ()))
    ]


def _calls_of(one: Object, writes: bool) -> tuple[Call, ...]:
    return one.writers if writes else one.readers


def _users(one: Object) -> str:
    said = []
    for users, what in ((one.writers, "written"), (one.readers, "read")):
        if users:
            said.append(f"{what} by {', '.join(sorted({call.target for call in users}))}")
    said += [f"may be {', '.join(one.may_be)}"] if one.may_be else []
    return "; ".join(said)


def _races(report: Report) -> list[str]:
    """The races that mend all of them, how many follow from these, and what to write."""
    told = [race for race in report.races if not race.follows]
    fixes = list(dict.fromkeys(race.fix for race in told))
    lines = []
    for race in told:
        lines += ["", *_race(race)]
        if len(fixes) > 1:
            lines.append(f"      fix: {race.fix}")
    if follow := len(report.races) - len(told):
        lines += ["", f"and {count(follow, 'race')} that {'follow' if follow > 1 else 'follows'} from these"]
    if len(fixes) == 1:
        lines.append(f"      fix: {fixes[0]}")
    if report.more_races:
        lines += ["", f"and {count(report.more_races, 'race')} more"]
    return lines


def _race(race: Race) -> list[str]:
    when = f", in a later iteration of {race.loop}" if race.loop else ""
    proof = ""
    if race.reversed:
        proof = "; the compiled program lists them the other way round"
    elif race.unproven:
        proof = f"; only the {race.unproven} has them in this order, which proves nothing"
    return [
        f"RACE  {race.first}",
        f"  then {race.second}{when}",
        f"      both touch {race.handle}, and the second does not wait for the first {_where(race.programs)}{proof}",
    ]


def _fate(lost: Lost) -> str:
    if lost.never_runs:
        return "dropped: XLA found that the branch or the loop around it never runs"
    if lost.merged_with is None:
        return "dropped: XLA found nothing that needs its result, and it has no side effect"
    return (
        f"merged with {lost.merged_with}: the two are equal, and XLA takes calls without a side effect to give the "
        "same each time"
    )


def _move(moved: Moved) -> str:
    loop = f"the loop at {moved.out_of[0]}" if moved.out_of else "its loop"
    return (
        f"runs once, before {loop}, instead of in each iteration: nothing that it is given changes there. If what it "
        "reads does, mark it with `reads(..., volatile=True)` and use `ordered`, or give it a side effect"
    )


def _where(programs: Sequence[str]) -> str:
    return f"({' and '.join(programs)})"


def _costs(entangles: Sequence[Entangle]) -> list[str]:
    rows = [("entangle at", "payload", "copied", "why")]
    for one in entangles:
        reasons = (
            {copy.why + (f": {copy.whom}" if copy.whom else "") for copy in one.copies}
            | {f"around it: {name}" for name in (*one.transposes, *one.collectives)}
            | set(one.dropped)
        )
        copied = _size(one.copied_bytes) if one.copies else "in place"
        where = str(one.call.own_sources[0]) if one.call.own_sources else "the end of the program"
        rows.append((where, _size(one.payload_bytes), copied, "; ".join(sorted(reasons))))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if size >= 10 or size == int(size) else f"{size:.1f} {units[0]}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
