"""Links, files and series that the documents name exist."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from spec_toggle.metrics import ToggleMetrics

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:configs|docs|benchmarks|patches|tests|spec_toggle)/[\w./-]+)`")


def anchors(document: Path) -> set[str]:
    """GitHub's anchors of a document's headings, code blocks left out."""
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_files_exist(document: Path) -> None:
    text = document.read_text()
    for link in LINK.findall(text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), f"{document.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{document.name}: {link}"
    for name in FILE.findall(text):
        assert (ROOT / name).exists(), f"{document.name}: {name}"


def test_the_guide_explains_every_series_and_no_other() -> None:
    registry = CollectorRegistry()
    ToggleMetrics({"model_name": "tiny"}, registry)
    names = {f.name + ("_total" if f.type == "counter" else "") for f in registry.collect()}
    guide = (ROOT / "docs/operations.md").read_text()
    assert set(re.findall(r"^\| `(spec_toggle_\w+)", guide, flags=re.MULTILINE)) == names


def test_the_readme_leads_to_every_guide() -> None:
    readme = (ROOT / "README.md").read_text()
    for guide in ROOT.glob("docs/*.md"):
        assert f"](docs/{guide.name})" in readme
