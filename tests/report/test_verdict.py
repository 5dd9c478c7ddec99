from __future__ import annotations

import pytest
from report_factory import MASK_TOP_LEFT, ROWS, gpu_only_selected, limits_hit, mixture, outcomes, report, starter_fails

from grader.errors import ExitCode
from grader.report.model import Diagnosis, Kind, Status
from grader.report.verdict import by_kind, exception_site, exit_code, problems, skipped_points, troubled

FAIL = {"status": Status.FAIL, "message": "wrong"}
LSE_BASE_2 = Diagnosis(id="lse-base-2", text="LSE is in base 2.")


@pytest.mark.parametrize(
    "status", [s for s in Status if s not in (Status.PASS, Status.SKIPPED, Status.PENDING, Status.ERROR)]
)
def test_exit_code_any_lost_point_is_1(status: Status) -> None:
    assert exit_code(report(outcomes(forward={"status": status, "message": "m"}))) is ExitCode.POINTS_LOST


def test_exit_code_all_pass_is_0_even_with_a_skip() -> None:
    assert exit_code(report()) is ExitCode.OK
    skipped = outcomes(speed_sdpa={"status": Status.SKIPPED, "message": "needs a GPU"})
    assert exit_code(report(skipped)) is ExitCode.OK


def test_exit_code_graders_error_is_3_whatever_else_failed() -> None:
    checks = outcomes(forward=FAIL, traffic={"status": Status.ERROR, "message": "no result"})
    assert exit_code(report(checks)) is ExitCode.INFRASTRUCTURE
    assert exit_code(limits_hit()) is ExitCode.INFRASTRUCTURE


def test_exit_code_nothing_gradable_is_2() -> None:
    assert exit_code(gpu_only_selected()) is ExitCode.USAGE


def test_exit_code_partial_credit_is_1() -> None:
    checks = outcomes(benchmark={"status": Status.FAIL, "points": 9.99, "message": "nearly"})
    assert exit_code(report(checks)) is ExitCode.POINTS_LOST


def test_troubled_import_failure_comes_first() -> None:
    checks = outcomes(contract=FAIL, benchmark=FAIL | {"phase": "import", "message": "SyntaxError"})
    assert [check.id for check in troubled(report(checks))] == ["benchmark", "contract"]


def test_troubled_correctness_comes_before_traffic_and_public_before_hidden() -> None:
    checks = outcomes(traffic=FAIL, mask_bottom_right=FAIL, lse_natural_log=FAIL, ragged_tails=FAIL, benchmark=FAIL)
    assert [check.id for check in troubled(report(checks))] == [
        "ragged-tails",
        "mask-bottom-right",
        "lse-natural-log",
        "traffic",
        "benchmark",
    ]


def test_troubled_named_cause_comes_before_a_number_and_values_before_what_follows() -> None:
    """Whoever reads the first line alone reads a cause where one is known, and never a consequence of wrong values."""
    site = FAIL | {"message": "fa2.py:7 in f: ValueError: bad"}
    checks = outcomes(
        forward=FAIL,
        lse_natural_log=FAIL | {"diagnosis": LSE_BASE_2},
        mask_bottom_right=FAIL | {"diagnosis": MASK_TOP_LEFT},
        ragged_tails=site,
        traffic=FAIL | {"diagnosis": MASK_TOP_LEFT},
        benchmark=FAIL | {"diagnosis": LSE_BASE_2},
    )
    order = ["ragged-tails", "mask-bottom-right", "lse-natural-log", "forward", "traffic", "benchmark"]
    assert [check.id for check in troubled(report(checks))] == order
    unnamed = outcomes(traffic=FAIL, benchmark=FAIL | {"diagnosis": LSE_BASE_2})
    assert [check.id for check in troubled(report(unnamed))] == ["traffic", "benchmark"]


def test_troubled_crash_of_a_check_needs_no_diagnosis_to_be_told() -> None:
    checks = outcomes(
        contract={"status": Status.CONTRACT, "message": "O is float32, expected float16."},
        forward=FAIL | {"diagnosis": MASK_TOP_LEFT},
    )
    assert [check.id for check in troubled(report(checks))] == ["contract", "forward"]


def test_troubled_what_nobody_can_mend_comes_last() -> None:
    order = [check.status for check in troubled(limits_hit())]
    assert order[-3:] == [Status.NOISY, Status.SUSPECT, Status.ERROR]


def test_problems_group_the_same_words() -> None:
    groups = problems(starter_fails())
    assert [len(group.checks) for group in groups] == [6, 1]
    assert groups[0].first.id == "contract"


def test_problems_same_line_and_exception_is_one_however_it_is_worded() -> None:
    checks = outcomes(
        forward={"status": Status.FAIL, "message": "fa2.py:7 in f: ValueError: bad (3 of 3 cases.)"},
        traffic={"status": Status.FAIL, "message": "Your code raised ValueError at fa2.py:7. (2 of 4 cases.)"},
        ragged_tails={"status": Status.FAIL, "message": "fa2.py:8 in f: ValueError: bad"},
        benchmark={"status": Status.FAIL, "message": "wrong sum (1 of 2 cases.)"},
        speed_sdpa={"status": Status.FAIL, "message": "wrong sum"},
    )
    groups = [[check.id for check in group.checks] for group in problems(report(checks))]
    assert groups == [["forward", "traffic"], ["ragged-tails"], ["speed-sdpa", "benchmark"]]


def test_problems_same_diagnosis_is_one_whatever_the_numbers() -> None:
    checks = outcomes(
        forward=FAIL | {"diagnosis": MASK_TOP_LEFT, "message": "off by 0.3"},
        mask_bottom_right=FAIL | {"diagnosis": MASK_TOP_LEFT, "message": "off by 0.7"},
    )
    assert [len(group.checks) for group in problems(report(checks))] == [2]


@pytest.mark.parametrize(
    ("message", "site"),
    [
        ("a/b.py:42 in f: NotImplementedError: TODO", ("a/b.py:42", "NotImplementedError")),
        ("Your code raised KeyboardInterrupt at x.py:1.", ("x.py:1", "KeyboardInterrupt")),
        ("O is wrong at fa2.py:3", None),
        ("ValueError without a line", None),
        ("", None),
    ],
)
def test_exception_site_needs_line_and_type(message: str, site: tuple[str, str] | None) -> None:
    assert exception_site(message) == site


def test_problems_with_different_diagnoses_stay_apart() -> None:
    assert [group.first.id for group in problems(mixture())] == ["ragged-tails", "mask-bottom-right", "benchmark"]


def test_by_kind_covers_every_check_once() -> None:
    kinds = by_kind(mixture())
    assert next(iter(kinds)) is Kind.CORRECTNESS
    assert sum(tally.checks for tally in kinds.values()) == len(ROWS)


def test_skipped_points_add_up_by_reason() -> None:
    assert skipped_points(gpu_only_selected().checks) == {"not selected": 80.0, "needs an NVIDIA GPU": 20.0}
