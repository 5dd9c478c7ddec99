"""Finds which instructions of a disassembly stand inside a loop, by the code's flow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)\S*\s*(.*?)\s*;?\s*\}?\s*$")
_LABEL = re.compile(r"^\s*([.$\w]+):\s*$")
_TARGET = re.compile(r"`\(([.$\w]+)\)")
_JUMPS = frozenset({"BRA", "JMP", "CALL", "WARPSYNC"})
_INDIRECT = frozenset({"BRX", "BRXU", "JMX", "JMXU"})
_ENDS = frozenset({"EXIT", "RET", "KILL"})


@dataclass(frozen=True)
class _Instruction:
    guarded: bool
    opcode: str
    operands: str


def in_loops(sass: str, opcodes: frozenset[str]) -> int:
    """How many instructions with these opcodes can run more than once a thread: some way leads from them to themselves.

    A jump whose targets the code doesn't name is taken to lead anywhere.
    """
    instructions, labels = _parsed(sass)
    looping = _on_cycles(_successors(instructions, labels))
    return sum(looping[index] for index, item in enumerate(instructions) if item.opcode in opcodes)


def _parsed(sass: str) -> tuple[list[_Instruction], dict[str, int]]:
    instructions: list[_Instruction] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        label, found = _LABEL.match(line), _LINE.match(line)
        if label:
            labels[label[1]] = len(instructions)
        elif found:
            instructions.append(_Instruction(bool(found[1]), found[2], found[3]))
    return instructions, labels


def _successors(instructions: Sequence[_Instruction], labels: dict[str, int]) -> list[list[int]]:
    """For each instruction, those that may run next."""
    last = len(instructions)
    returns = [index + 1 for index, item in enumerate(instructions) if item.opcode == "CALL" and index + 1 < last]
    found: list[list[int]] = []
    for index, item in enumerate(instructions):
        following = [
            labels[name] for name in _TARGET.findall(item.operands) if item.opcode in _JUMPS and name in labels
        ]
        if item.opcode in _INDIRECT:
            following += labels.values()
        if item.opcode == "RET":
            following += returns
        # `BRA.U !UP0, (label)` has its condition among its operands.
        leaves = item.opcode in _INDIRECT or (item.opcode in ("BRA", "JMP") and item.operands.startswith("`("))
        if item.guarded or not (leaves or item.opcode in _ENDS or item.opcode == "CALL"):
            following.append(index + 1)
        found.append([other for other in following if other < last])
    return found


def _on_cycles(successors: Sequence[Sequence[int]]) -> list[bool]:
    """Which nodes of a graph a way leads back to: Tarjan's strongly connected components, without recursion."""
    count = len(successors)
    order, low = [-1] * count, [0] * count
    on_stack, cyclic = [False] * count, [False] * count
    stack: list[int] = []
    numbered = 0
    for root in range(count):
        work = [(root, 0)] if order[root] < 0 else []
        while work:
            node, position = work.pop()
            if not position:
                order[node] = low[node] = numbered
                numbered += 1
                stack.append(node)
                on_stack[node] = True
            while position < len(successors[node]) and order[successors[node][position]] >= 0:
                other = successors[node][position]
                low[node] = min(low[node], order[other]) if on_stack[other] else low[node]
                position += 1
            if position < len(successors[node]):
                work += [(node, position + 1), (successors[node][position], 0)]
                continue
            if low[node] == order[node]:
                component = [stack.pop()]
                while component[-1] != node:
                    component.append(stack.pop())
                for member in component:
                    on_stack[member] = False
                    cyclic[member] = len(component) > 1 or member in successors[member]
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return cyclic
