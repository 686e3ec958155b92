"""A pair that cannot be had is one line of the demo, not a traceback."""

from pathlib import Path

import pytest

from benchmarks.reference_pair import pair
from benchmarks.reference_pair.fetch import FetchError
from spec_toggle.demo.pairs import PairError, load_pair


def test_a_missing_head_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"^no head in .*: run python -m benchmarks\.reference_pair"
    ):
        pair.reference_pair(tmp_path)


def test_the_demo_names_the_other_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> None:
        raise FetchError("cannot download it")

    monkeypatch.setattr(pair, "reference_pair", offline)
    with pytest.raises(PairError, match=r"^cannot download it \(or use --pair tiny\)$"):
        load_pair("reference", lambda *_: None)
