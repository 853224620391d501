"""Whether a compiled program has a data path from one operation to another.

Runtimes run by data dependence, so this, and not the order of the lines in the text, says what runs first.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(to_apply|calls|body|condition|branch_computations|true_computation|false_computation)=(\{[^}]*\}|%[\w.\-]+)"
)

# An instruction, and which element if its value is a tuple of which only one matters.
_Value = tuple["_Instruction", int | None]


@dataclass(eq=False)
class _Instruction:
    computation: "_Computation"
    name: str
    opcode: str
    arguments: str  # what stands between the parentheses
    attributes: str  # what stands after them

    @cached_property
    def operands(self) -> "list[_Instruction]":
        return [self.computation.instructions[name] for name in _NAME.findall(self.arguments)]

    @cached_property
    def called(self) -> dict[str, list[str]]:
        return {kind: _NAME.findall(names) for kind, names in _CALLED.findall(self.attributes)}


@dataclass(eq=False)
class _Computation:
    instructions: dict[str, _Instruction] = field(default_factory=dict)
    root: _Instruction | None = None


class Program:
    """The instructions of a compiled program, as its text gives them."""

    def __init__(self, text: str) -> None:
        """Read what `jax.stages.Compiled.as_text` returns."""
        self._computations: dict[str, _Computation] = {}
        computation = _Computation()
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                computation = self._computations[match[1]] = _Computation()
            elif match := _INSTRUCTION.match(line):
                opcode, arguments, attributes = _split(match[3])
                instruction = _Instruction(computation, match[2], opcode, arguments, attributes)
                computation.instructions[match[2]] = instruction
                if match[1]:
                    computation.root = instruction
        self._callers = {
            name: caller
            for there in self._computations.values()
            for caller in there.instructions.values()
            for names in caller.called.values()
            for name in names
        }
        self._names = {id(computation): name for name, computation in self._computations.items()}

    def calls(self, target: str) -> int:
        """Count the custom calls of a native target."""
        return len(self._find(f'custom_call_target="{target}"'))

    def has_path(self, first: str, then: str, *, next_iteration: bool = False) -> bool:
        """Whether each native call under the `jax.named_scope` `then` needs, by data, one under the scope `first`.

        Args:
          first: the scope of the producer. False if no native call is left of it.
          then: the scope of the consumer. The same.
          next_iteration: the two are in one loop, and `then` is the one of the next iteration.
        """
        sources, sinks = self._in_scope(first), self._in_scope(then)
        return bool(sources and sinks) and all(self._reaches(sink, sources, next_iteration) for sink in sinks)

    def _find(self, attribute: str) -> list[_Instruction]:
        those = (i for computation in self._computations.values() for i in computation.instructions.values())
        return [i for i in those if i.opcode == "custom-call" and attribute in i.attributes]

    def _in_scope(self, scope: str) -> list[_Instruction]:
        return [i for i in self._find("op_name=") if re.search(rf'op_name="[^"]*/{re.escape(scope)}/', i.attributes)]

    def _reaches(self, sink: _Instruction, sources: list[_Instruction], next_iteration: bool) -> bool:
        # Whether a value was passed on by the iteration before is part of where we are.
        seen: set[tuple[_Value, bool]] = set()
        todo: list[tuple[_Value, bool]] = [((operand, None), False) for operand in sink.operands]
        while todo:
            place = todo.pop()
            if place in seen:
                continue
            seen.add(place)
            value, carried = place
            if value[0] in sources and carried == next_iteration:
                return True
            todo += [(needed, carried) for needed in self._needs(*value)]
            if next_iteration and not carried:
                todo += [(needed, True) for needed in self._carried_to(*value)]
        return False

    def _needs(self, of: _Instruction, element: int | None) -> list[_Value]:
        """What this value is computed from, one step back."""
        match of.opcode:
            case "parameter":
                return self._passed_to(of, element)
            case "get-tuple-element":
                return [(of.operands[0], int(re.search(r"index=(\d+)", of.attributes)[1]))]  # type: ignore[index]
            case "tuple" if element is not None:
                return [(of.operands[element], None)]
            case "while":
                return [(of.operands[0], element), *self._roots(of, "body", element)]
            case "conditional":
                branches = [kind for kind in of.called if kind != "to_apply"]
                return [(of.operands[0], None), *(root for kind in branches for root in self._roots(of, kind, element))]
            case "call":
                return self._roots(of, "to_apply", element)
            case "opt-barrier":
                return [(operand, element) for operand in of.operands]  # gone at run time
        return [(operand, None) for operand in of.operands]

    def _roots(self, of: _Instruction, kind: str, element: int | None) -> list[_Value]:
        roots = [self._computations[name].root for name in of.called[kind]]
        return [(root, element) for root in roots if root is not None]

    def _passed_to(self, parameter: _Instruction, element: int | None) -> list[_Value]:
        name = self._names[id(parameter.computation)]
        caller = self._callers.get(name)
        if caller is None:
            return []
        place = int(parameter.arguments)
        if caller.opcode == "conditional":
            branches = [branch for kind, those in caller.called.items() if kind != "to_apply" for branch in those]
            place = 1 + branches.index(name)
        return [(caller.operands[place], element)]

    def _carried_to(self, of: _Instruction, element: int | None) -> list[_Value]:
        caller = self._callers.get(self._names[id(of.computation)])
        if of.opcode != "parameter" or caller is None or caller.opcode != "while":
            return []
        return self._roots(caller, "body", element)


def _split(text: str) -> tuple[str, str, str]:
    """Split `TYPE OPCODE(ARGUMENTS), ATTRIBUTES`; the type of a tuple has parentheses and spaces of its own."""
    start = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    opening = text.index("(", start)
    closing = _closing(text, opening)
    return text[start:opening].strip(), text[opening + 1 : closing], text[closing + 1 :]


def _closing(text: str, opening: int) -> int:
    depth = 0
    for i in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise ValueError(f"no closing parenthesis in {text[:200]!r}")
