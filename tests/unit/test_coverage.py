"""A launch beyond what was ever run says so."""

from types import SimpleNamespace
from typing import Any

import pytest

from spec_toggle.coverage import CPU, CUDA, NAMES, RUN, untested

SINGLE = {
    **{"tp_size": 1, "dp_size": 1, "ep_size": 1, "nnodes": 1},
    **{"attn_dp_size": 1, "enable_dp_attention": False},
}


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (CUDA, {}, []),
        (CPU, {"tp_size": 2}, []),
        (CUDA, {"tp_size": 2}, []),
        (CPU, {"tp_size": 4}, ["--tp-size 4 was never run"]),
        (CUDA, {"enable_dp_attention": True}, ["--enable-dp-attention was never run"]),
        (
            CUDA,
            {"tp_size": 8, "dp_size": 2, "attn_dp_size": None},
            ["--tp-size 8 was never run", "--dp-size 2 was never run"],
        ),
    ],
)
def test_settings_that_were_never_run_are_named(
    device: str, changes: dict[str, Any], expected: list[str]
) -> None:
    assert untested(SimpleNamespace(device=device, **{**SINGLE, **changes})) == expected


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        (CPU, {}, []),
        (CUDA, {}, []),
        (CPU, {"tp_size": 2}, ["--tp-size 2 was never run"]),
        (CUDA, {"tp_size": 2}, ["--tp-size 2 was never run"]),
    ],
)
def test_an_older_release_has_runs_of_its_own(
    device: str, changes: dict[str, Any], expected: list[str]
) -> None:
    settings = SimpleNamespace(device=device, **{**SINGLE, **changes})
    assert untested(settings, "0.5.12.post1") == expected


def test_every_entry_names_a_setting_and_devices_that_exist() -> None:
    assert {coverage.field for coverage in RUN} == set(SINGLE)
    for coverage in RUN:
        assert all(set(devices) <= set(NAMES) for devices in coverage.run.values())
