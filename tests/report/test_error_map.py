from __future__ import annotations

import math

import pytest
from report_factory import TAIL_MAP

from grader.report.error_map import draw, level, pooled
from grader.report.model import ErrorMap


@pytest.mark.parametrize(
    ("cell", "expected"),
    [(0.0, 0), (1.0, 0), (1.0001, 1), (10.0, 1), (10.1, 2), (100.5, 3), (math.inf, 4), (-math.inf, 4), (math.nan, 4)],
)
def test_level_by_decades_of_the_allowed_error(cell: float, expected: int) -> None:
    assert level(cell) == expected


def test_pooled_large_map_keeps_the_worst_cell() -> None:
    cells = [[0.0] * 100 for _ in range(64)]
    cells[63][99] = 50.0
    levels = pooled(cells, 16, 48)
    assert (len(levels), len(levels[0])) == (16, 34)
    assert levels[-1][-1] == 2
    assert sum(sum(row) for row in levels) == 2


def test_pooled_ragged_rows_and_empty_maps_are_borne() -> None:
    assert pooled([], 16, 48) == []
    assert pooled([[]], 16, 48) == []
    assert pooled([[0.0, 2.0], [0.0]], 16, 48) == [[0, 1], [0, 0]]


def test_draw_says_what_one_cell_covers_when_tiles_are_pooled() -> None:
    large = ErrorMap(title="O", row_axis="query", col_axis="head_dim", tile=(16, 8), cells=[[0.0] * 96] * 32)
    lines = [line.plain for line in draw(large, shaded=False)]
    assert lines[0] == "O: query down, head_dim across, 32 x 16 a cell"
    assert lines[1] == "  " + "." * 48
    assert len(lines) == 1 + 16 + 1


def test_draw_legend_names_only_what_appears() -> None:
    mild = ErrorMap(title="O", row_axis="q", col_axis="d", tile=(1, 1), cells=[[0.5, 2.0]])
    assert draw(mild, shaded=False)[-1].plain == "  error / allowed: . allowed  - up to 10x"


def test_draw_shaded_and_plain_show_the_same_levels() -> None:
    plain = [line.plain for line in draw(TAIL_MAP, shaded=False)[1:-1]]
    shaded = [line.plain for line in draw(TAIL_MAP, shaded=True)[1:-1]]
    assert [row.translate(str.maketrans(".-+#!", "·░▒▓█")) for row in plain] == shaded


def test_draw_hostile_title_is_inert() -> None:
    bad = ErrorMap(title="\x1b[2JO\nX", row_axis="q\x07", col_axis="d", tile=(1, 1), cells=[[0.5]])
    assert draw(bad, shaded=False)[0].plain == "O X: q\ufffd down, d across, 1 x 1 a cell"
