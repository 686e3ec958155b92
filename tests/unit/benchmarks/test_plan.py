"""Groups of servers, sizes of levels, and the time budget."""

import pytest

from benchmarks.plan import STOP_RESERVE_S, Budget, estimate_level_s, make_groups, requests_for


@pytest.mark.parametrize(
    ("arms", "parallel", "groups"),
    [
        (["none", "static", "toggle"], 1, [["none"], ["static"], ["toggle"]]),
        (["none", "static", "toggle"], 2, [["none", "static"], ["toggle"]]),
        # The second look at "none" takes no server while "none" is up, and one when it is not.
        (
            ["none", "static", "none_again", "toggle"],
            2,
            [["none", "static", "none_again"], ["toggle"]],
        ),
        (["none", "none_again"], 1, [["none", "none_again"]]),
        (["static", "none_again"], 2, [["static", "none_again"]]),
        (
            ["none", "static", "toggle", "none_again"],
            2,
            [["none", "static"], ["toggle", "none_again"]],
        ),
        ([], 3, []),
    ],
)
def test_groups(arms: list[str], parallel: int, groups: list[list[str]]) -> None:
    assert make_groups(arms, parallel) == groups


def test_levels_last_about_as_long() -> None:
    assert requests_for(1, 256, 6.0, None) == 5
    assert requests_for(64, 256, 6.0, None) == 64 * 3
    assert requests_for(256, 256, 6.0, None) == 256 * 2
    assert requests_for(256, 256, 6.0, 1) == 256


def test_estimate_grows_with_the_last_level() -> None:
    assert estimate_level_s(20.0) > 2 * 20.0
    assert estimate_level_s(None) > 0


def test_budget_keeps_time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("benchmarks.plan.time.monotonic", lambda: now)
    budget = Budget(60)
    assert budget.allows(60 - STOP_RESERVE_S)
    now = 140.0
    assert budget.elapsed_s == 40
    assert not budget.allows(60 - STOP_RESERVE_S - 39)
    assert Budget(None).allows(1e9)
