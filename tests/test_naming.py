"""What a parametrized test is called: the same in every process, so never by bytes, long or unprintable text."""

from __future__ import annotations

import gzip

import pytest


@pytest.mark.parametrize("value", [gzip.compress(b"x"), "x" * 61, "two\nlines", "\N{SNOWMAN}"])
def test_name_of_a_value_that_makes_none_is_its_arguments(pytestconfig: pytest.Config, value: object) -> None:
    assert pytestconfig.hook.pytest_make_parametrize_id(config=pytestconfig, val=value, argname="raw") == "raw"


def test_name_of_short_text_is_left_to_pytest(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.hook.pytest_make_parametrize_id(config=pytestconfig, val="causal", argname="raw") is None
