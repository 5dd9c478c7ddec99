"""Which instructions of a disassembly run more than once, by the code's flow."""

from __future__ import annotations

import pytest

from grader.worker.sass_loops import in_loops

LOCAL = frozenset({"LDL", "STL"})

STRAIGHT = """
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   STL [R1], R2 ;
        /*0020*/              @!P0 BRA `(.L_x_0) ;
        /*0030*/                   LDL R2, [R1] ;
.L_x_0:
        /*0040*/                   EXIT ;
"""

LOOPS = """
        /*0000*/                   STL [R1], R2 ;
.L_x_1:
        /*0010*/                   LDL.64 R2, [R1] ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   STL [R1], R2 ;
.L_x_2:
        /*0040*/             @!UP0 STL [R1], R2 ;
        /*0050*/                   BRA.U UP0, `(.L_x_2) ;
        /*0060*/                   LDL R2, [R1] ;
        /*0070*/                   EXIT ;
.L_x_3:
        /*0080*/                   BRA `(.L_x_3);
        /*0090*/                   NOP ;
"""

SLOW_PATH = """
.L_x_0:
        /*0000*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R0], R1 ;
        /*0010*/              @!P0 BRA `(.L_x_9) ;
.L_x_1:
        /*0020*/               @P1 BRA `(.L_x_0) ;
        /*0030*/                   STL [R1], R2 ;
        /*0040*/                   EXIT ;
.L_x_9:
        /*0050*/                   LDL R2, [R1] ;
        /*0060*/                   BRA `(.L_x_1) ;
"""

FUNCTION = """
.L_x_0:
        /*0000*/                   CALL.REL.NOINC `(helper) ;
        /*0010*/               @P1 BRA `(.L_x_0) ;
        /*0020*/                   STL [R1], R2 ;
        /*0030*/                   EXIT ;
helper:
        /*0040*/                   LDL R2, [R1] ;
        /*0050*/                   RET.REL.NODEC R4 `(kernel) ;
"""

INDIRECT = """
.L_x_0:
        /*0000*/                   STL [R1], R2 ;
        /*0010*/                   BRX R2 -0x10 ;
        /*0020*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("sass", "count"),
    [(STRAIGHT, 0), (LOOPS, 2), (SLOW_PATH, 1), (FUNCTION, 1), (INDIRECT, 1), ("", 0)],
    ids=["straight", "loops", "slow path at the end", "function called in a loop", "indirect", "empty"],
)
def test_in_loops_counts_by_flow(sass: str, count: int) -> None:
    assert in_loops(sass, LOCAL) == count


def test_in_loops_large_code_needs_no_recursion() -> None:
    body = "".join(f"        /*{index:05x}*/                   LDL R2, [R1] ;\n" for index in range(20_000))
    assert in_loops(f".L_x_0:\n{body}        /*fffff*/ @P0 BRA `(.L_x_0) ;\n", LOCAL) == 20_000
