"""What the toggle was run with, so that a launch can say when it goes beyond that.

One table to update after a run: add a value, or a device to a value, and say in the README what
ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

CUDA, CPU = "cuda", "cpu"
NAMES = {CUDA: "on GPUs", CPU: "on the CPU engine"}


class Coverage(NamedTuple):
    """A server argument, and the values it was run with, each with the devices it was run on."""

    field: str
    flag: str
    run: Mapping[Any, tuple[str, ...]]


RUN = (
    Coverage("tp_size", "--tp-size", {1: (CUDA, CPU), 2: (CPU,)}),
    Coverage("dp_size", "--dp-size", {1: (CUDA, CPU)}),
    Coverage("ep_size", "--ep-size", {1: (CUDA, CPU)}),
    Coverage("nnodes", "--nnodes", {1: (CUDA, CPU)}),
    # Refused at present; what is no longer refused is untested first.
    Coverage("attn_dp_size", "--attn-dp-size", {0: (CUDA, CPU), 1: (CUDA, CPU)}),
    Coverage("enable_dp_attention", "--enable-dp-attention", {False: (CUDA, CPU)}),
)


def untested(settings: Any) -> list[str]:
    """A few words on each setting that was never run on the device of ``settings``.

    ``settings``: the resolved view of ``ServerArgs``. None stands for a default.
    """
    device = str(settings.device)
    found = []
    for coverage in RUN:
        value = getattr(settings, coverage.field, None)
        devices = (device,) if value is None else coverage.run.get(value, ())
        if device not in devices:
            where = " and ".join(NAMES[each] for each in devices)
            ran = f"was run {where} only" if where else "was never run"
            given = coverage.flag if value is True else f"{coverage.flag} {value}"
            found.append(f"{given} {ran}")
    return found
