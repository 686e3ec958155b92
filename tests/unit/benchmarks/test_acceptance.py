"""The arithmetic of accepted drafts, from SGLang's histograms per request."""

import pytest

from benchmarks.acceptance import summarise


def test_rounds_of_all_requests_are_one_population() -> None:
    found = summarise([[2, 1], [0, 0, 1, 2]])
    assert found["rounds"] == 6
    assert found["accept_len"] == pytest.approx(1 + (1 + 2 + 6) / 6)
    assert found["by_step"] == pytest.approx([4 / 6, 3 / 4, 2 / 3], abs=1e-4)


def test_nothing_served() -> None:
    assert summarise([])["accept_len"] == 1
