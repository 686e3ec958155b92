"""The verdict: what the toggle did, and whether any output differs from plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from spec_toggle.demo.snapshot import Snapshot
from spec_toggle.demo.traffic import Completion

MIN_SWITCHES = 2


@dataclass(frozen=True)
class Report:
    """Counters over the load alone, and the comparison with the reference server."""

    switches: int
    plain_steps: int
    rounds: int
    plain_tokens: int
    spec_tokens: int
    equal: int
    total: int
    accept_length: float

    @property
    def problems(self) -> list[str]:
        """Why the demo failed; empty if it did not."""
        problems = []
        if self.total == 0 or self.equal != self.total:
            problems.append(
                f"{self.total - self.equal} of {self.total} outputs differ from the server "
                "without speculation"
            )
        if self.switches < MIN_SWITCHES:
            problems.append(
                f"the mode changed {self.switches} times, expected at least {MIN_SWITCHES}"
            )
        return problems

    def table(self) -> Table:
        table = Table(title="Summary", show_header=False)
        table.add_row("switches", str(self.switches))
        table.add_row("plain steps", str(self.plain_steps))
        table.add_row("rounds", str(self.rounds))
        table.add_row("tokens from plain steps", str(self.plain_tokens))
        table.add_row("tokens from rounds", str(self.spec_tokens))
        table.add_row("accept length", f"{self.accept_length:.2f}")
        table.add_row("outputs equal to no speculation", f"{self.equal} of {self.total}")
        return table


def make_report(
    before: Snapshot,
    after: Snapshot,
    completions: Sequence[Completion],
    expected: Sequence[Completion],
) -> Report:
    outputs = {completion.prompt: output(completion) for completion in expected}
    equal = sum(bool(c.token_ids) and outputs.get(c.prompt) == output(c) for c in completions)
    rounds = sum(completion.rounds for completion in completions)
    correct = sum(completion.correct_drafts for completion in completions)
    return Report(
        switches=after.switches - before.switches,
        plain_steps=after.plain_steps - before.plain_steps,
        rounds=after.rounds - before.rounds,
        plain_tokens=after.plain_tokens - before.plain_tokens,
        spec_tokens=after.spec_tokens - before.spec_tokens,
        equal=equal,
        total=len(completions),
        accept_length=1 + correct / rounds if rounds else 0.0,
    )


def output(completion: Completion) -> tuple[list[int], str]:
    return completion.token_ids, completion.text
