"""Reads compiled programs: which native calls depend, by data, on which others, and what XLA added.

`paths` is a small abstract interpreter of HLO text. It follows single tuple elements through calls, fusions, branches
and loops, so that a path it finds is one that the runtime has to obey.
"""

import contextlib
import re
from dataclasses import dataclass, field

import jax

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "collective-broadcast")

# "%name = shape opcode(", where the shape may be a tuple, which may hold spaces and two more levels of parentheses.
_INSTRUCTION = re.compile(
    r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = "
    r"(?P<shape>\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\S+) (?P<op>[\w\-]+)\((?P<rest>.*)$"
)
_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) (?:\(.*\) -> .*)?\{$")


@dataclass
class Instruction:
    name: str
    op: str
    shape: str
    operands: list
    text: str

    def attribute(self, name):
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.text)
        return found and found[1]


@dataclass
class Computation:
    instructions: dict = field(default_factory=dict)
    parameters: dict = field(default_factory=dict)
    root: str = ""


def text(function, *args, **options):
    """The compiled text of a function, or of something already lowered or compiled."""
    if hasattr(function, "as_text"):
        return function.as_text()
    function = function if hasattr(function, "lower") else jax.jit(function, **options)
    return function.lower(*args).compile().as_text()


@contextlib.contextmanager
def partitioner(shardy):
    """Within it, programs are partitioned by Shardy or by GSPMD."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", shardy)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def parse(hlo):
    """`{name: Computation}`, and the entry under the name None."""
    computations, current = {}, None
    for line in hlo.splitlines():
        if (found := _COMPUTATION.match(line)) and " = " not in line.split("{")[0].split("(")[0]:
            current = computations[found["name"]] = Computation()
            if found["entry"]:
                computations[None] = current
        elif current is not None and (found := _INSTRUCTION.match(line)):
            inside = _inside_parentheses(found["rest"])
            this = Instruction(found["name"], found["op"], found["shape"], re.findall(r"%([\w.\-]+)", inside), line)
            current.instructions[this.name] = this
            if this.op == "parameter":
                current.parameters[int(inside)] = this.name
            if found["root"]:
                current.root = this.name
    assert None in computations, f"no ENTRY in\n{hlo}"
    return computations


def _inside_parentheses(rest):
    depth = 1
    for i, character in enumerate(rest):
        depth += (character in "({") - (character in ")}")
        if depth == 0:
            return rest[:i]
    raise AssertionError(f"unbalanced: {rest}")


def instructions(hlo, op=None):
    """All instructions of a program, of all its computations."""
    found = [each for name, part in parse(hlo).items() if name is not None for each in part.instructions.values()]
    return [each for each in found if op is None or each.op == op]


def native_calls(hlo, target="entangle"):
    return [each for each in instructions(hlo, "custom-call") if f'custom_call_target="{target}"' in each.text]


def collectives(hlo):
    """What is sent between devices. On a GPU that is two instructions, one that starts it and one that waits for it."""
    names = [each.op.removesuffix("-start") for each in instructions(hlo) if not each.op.endswith("-done")]
    return [name for name in names if name.startswith(COLLECTIVES)]


def copies(hlo, shape):
    """Copies of arrays of this shape, such as `f32[512,512]`, also those inside of fusions."""
    return [
        each.text for each in instructions(hlo) if each.op in ("copy", "copy-start") and each.shape.startswith(shape)
    ]


def layouts_agree(hlo):
    """Assert that every aliased operand of every entangle call has the layout of its result."""
    for part in parse(hlo).values():
        for call in part.instructions.values():
            if call.op == "custom-call" and 'custom_call_target="entangle"' in call.text:
                results = re.findall(r"\w+\[[\d,]*\](?:\{[^}]*\})?", call.shape)
                operands = [part.instructions[name].shape for name in call.operands]
                assert results == operands[: len(results)], call.text


def paths(hlo):
    """`{call: calls it depends on}` for the labelled native calls, by label.

    Loops are unrolled twice: a call in a loop stands there as `label@0` and `label@1`, one in a loop in a loop as
    `label@0.1`.
    """
    return Interpreter(parse(hlo)).run()


class Interpreter:
    """A value is the set of calls it depends on, or a list of values (a tuple)."""

    def __init__(self, computations):
        self.computations = computations
        self.depends = {}

    def run(self):
        entry = self.computations[None]
        self.evaluate(entry, [frozenset()] * len(entry.parameters), ())
        return self.depends

    def evaluate(self, part, arguments, iteration):
        values = {}
        # Operands come before their users in HLO text.
        for each in part.instructions.values():
            operands = [values[name] for name in each.operands]
            values[each.name] = self.step(each, operands, arguments, iteration)
        return values[part.root]

    def step(self, each, operands, arguments, iteration):
        match each.op:
            case "parameter":
                return arguments[int(_inside_parentheses(each.text.split(" parameter(", 1)[1]))]
            case "tuple":
                return operands
            case "get-tuple-element":
                whole = operands[0]
                return whole[int(each.attribute("index"))] if isinstance(whole, list) else whole
            case "fusion" | "call" | "async-start" if called := each.attribute("calls") or each.attribute("to_apply"):
                return self.evaluate(self.computations[called], operands, iteration)
            case "copy" | "bitcast" | "copy-start" | "copy-done" | "async-done" | "opt-barrier":
                return operands[0]
            case "while":
                state = operands[0]
                for i in range(2):
                    state = self.evaluate(self.computations[each.attribute("body")], [state], (*iteration, i))
                return state
            case "conditional":
                listed = re.search(r"branch_computations=\{([^}]*)\}", each.text)
                names = (
                    [name.strip().lstrip("%") for name in listed[1].split(",")]
                    if listed
                    else [each.attribute("true_computation"), each.attribute("false_computation")]
                )
                results = [
                    self.evaluate(self.computations[name], [operand], iteration)
                    for name, operand in zip(names, operands[1:], strict=True)
                ]
                return _joined(results, everything(operands[0]))
            case "custom-call":
                return self.native_call(each, everything(operands), iteration)
        return everything(operands)

    def native_call(self, each, upstream, iteration):
        label = re.search(r'backend_config=.*\blabel ?= ?\\?"(\w+)', each.text)
        if label is None:
            return upstream
        return self.labelled(label[1], upstream, iteration)

    def labelled(self, label, upstream, iteration):
        name = label + ("@" + ".".join(map(str, iteration)) if iteration else "")
        # A label may be on several calls: what is said of it holds for every one of them.
        self.depends[name] = self.depends.get(name, upstream) & upstream
        return upstream | {name}


def everything(value):
    """All that a value or any element of it depends on."""
    return frozenset().union(*map(everything, value)) if isinstance(value, list) else value


def _joined(values, extra):
    if all(isinstance(value, list) for value in values):
        return [_joined(elements, extra) for elements in zip(*values, strict=True)]
    return everything(list(values)) | extra
