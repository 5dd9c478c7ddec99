"""Public checks of lab10."""

from __future__ import annotations

from pathlib import Path

from grader.judge import Judge, Submission, check
from grader.judge.capstone import checks, figure_checks
from grader.profiles import list_profiles, load_profile

COURSE = Path(__file__).resolve().parents[2]
TEMPLATE = COURSE / "starter" / "lab10_capstone" / "README.md"


@check("manifest")
def test_manifest_is_whole(submission: Submission, judge: Judge) -> None:
    """Every key known and consistent, three timed shapes or more, and the module that it names is there."""
    checks.judge_manifest(judge, submission, int(judge.thresholds["min_shapes"]))


@check("readme")
def test_readme_has_its_sections(submission: Submission, judge: Judge) -> None:
    """The seven headings in order, none empty, none the template's."""
    checks.judge_readme(judge, submission, TEMPLATE.read_bytes() if TEMPLATE.is_file() else None)


@check("patch")
def test_patch_applies(submission: Submission, judge: Judge) -> None:
    """Without fuzz to the pinned tree, or to an empty one; the files that it adds are those of this folder."""
    checks.judge_patch(judge, submission)


@check("patch-focus")
def test_patch_is_focused(submission: Submission, judge: Judge) -> None:
    """Few lines, more than white space and comments, and no file that `files` and How don't name."""
    checks.judge_patch_focus(judge, submission)


@check("correctness-report")
def test_report_is_whole(submission: Submission, judge: Judge) -> None:
    """The harness's version, verdicts that follow from their numbers, a passed row for every shape."""
    checks.judge_report(judge, submission)


@check("report-again")
def test_report_is_reproduced(submission: Submission, judge: Judge) -> None:
    """The harness with the report's seed, on the shapes that this machine can run."""
    checks.judge_report_again(judge, submission)


@check("benchmark")
def test_benchmark_is_whole(submission: Submission, judge: Judge) -> None:
    """Every timed shape before and after; samples, spread, one machine."""
    figure_checks.judge_table(judge, submission)


@check("benchmark-arithmetic")
def test_rates_follow(submission: Submission, judge: Judge) -> None:
    """Recomputed from the shape, the exact visible pairs of its mask, and the median."""
    figure_checks.judge_arithmetic(judge, submission)


@check("benchmark-possible")
def test_benchmark_is_possible(submission: Submission, judge: Judge) -> None:
    """Held to the peak and the bandwidth of the profile whose card the table names."""
    profiles = [load_profile(COURSE, name) for name in list_profiles(COURSE)]
    figure_checks.judge_possible(judge, submission, profiles)


@check("plot")
def test_plot_shows_the_table(submission: Submission, judge: Judge) -> None:
    """It carries the table's hash, plot.py draws the table's numbers, and the picture looks like that."""
    figure_checks.judge_plot(judge, submission)


@check("readme-figures")
def test_readme_has_the_figures(submission: Submission, judge: Judge) -> None:
    """Every cell of the tables under Performance, to the digits shown."""
    checks.judge_figures_in_readme(judge, submission)


@check("limitations")
def test_limitations_name_regressions(submission: Submission, judge: Judge) -> None:
    """Every shape at which `after` is slower beyond the spread, or an audit is out of tolerance."""
    checks.judge_limitations(judge, submission)


@check("claims")
def test_claims_follow(submission: Submission, judge: Judge) -> None:
    """Each bound holds at every shape that the claim names."""
    figure_checks.judge_claims(judge, submission)
