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
    """A server argument, and the values it was run with, each with the devices it was run on.

    ``older``: values that were run, on both devices, with SGLang whose worker gets a batch of its
    own (0.5.12.post1).
    """

    field: str
    flag: str
    run: Mapping[Any, tuple[str, ...]]
    older: tuple[Any, ...]


RUN = (
    Coverage("tp_size", "--tp-size", {1: (CUDA, CPU), 2: (CUDA, CPU)}, older=(1,)),
    Coverage("dp_size", "--dp-size", {1: (CUDA, CPU)}, older=(1,)),
    Coverage("ep_size", "--ep-size", {1: (CUDA, CPU)}, older=(1,)),
    Coverage("nnodes", "--nnodes", {1: (CUDA, CPU)}, older=(1,)),
    # Refused at present; what is no longer refused is untested first.
    Coverage("attn_dp_size", "--attn-dp-size", {0: (CUDA, CPU), 1: (CUDA, CPU)}, older=(0, 1)),
    Coverage("enable_dp_attention", "--enable-dp-attention", {False: (CUDA, CPU)}, older=(False,)),
)


def untested(settings: Any, older_release: str | None = None) -> list[str]:
    """A few words on each setting that was never run on the device of ``settings``.

    ``settings``: the resolved view of ``ServerArgs``. None stands for a default.
    ``older_release``: of SGLang, where its worker gets a batch of its own.
    """
    device = str(settings.device)
    found = []
    for coverage in RUN:
        value = getattr(settings, coverage.field, None)
        run = coverage.run
        if older_release is not None:
            run = dict.fromkeys(coverage.older, (CUDA, CPU))
        devices = (device,) if value is None else run.get(value, ())
        if device not in devices:
            given = coverage.flag if value is True else f"{coverage.flag} {value}"
            found.append(f"{given} {_ran(devices)}")
    return found


def _ran(devices: tuple[str, ...]) -> str:
    where = " and ".join(NAMES[each] for each in devices)
    return f"was run {where} only" if where else "was never run"
