"""Server processes without SGLang: log facts, death at start, and no orphan."""

import sys
import time
from pathlib import Path

from benchmarks.servers import Server, parse_log, stop, wait_ready

LOG = """
[t] server_args={'retraction_policy': 'length'}
[t] Capture decode CUDA graph end. elapsed=9.10 s, mem usage=1.20 GB, avail mem=90.00 GB.
[t] Dynamic speculation: captured native DECODE graphs for batch sizes [1, 2, 4] in 3.5 s, 0.42 GB.
[t] max_total_num_tokens=147456, chunked_prefill_size=8192, max_prefill_tokens=16384, \
max_running_requests=256, context_len=8192, available_gpu_mem=80.00 GB
"""


def test_facts_of_a_log() -> None:
    facts = parse_log(LOG)
    assert facts["max_total_num_tokens"] == 147456
    assert facts["max_running_requests"] == 256
    assert facts["native_graph_batch_sizes"] == "1, 2, 4"
    assert (facts["native_graph_s"], facts["native_graph_gb"]) == (3.5, 0.42)
    assert len(facts["log"]) == 1


def test_a_server_that_dies_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('out of memory'); raise SystemExit(3)"]
    server = Server("static", command, {}, 1, tmp_path / "log")
    events: list[str | None] = []
    assert wait_ready([server], time.monotonic() + 30, lambda s, e: events.append(e)) == []
    assert events[0] is not None and "exited with 3" in events[0] and "out of memory" in events[0]


def test_a_dying_server_is_not_waited_for(tmp_path: Path) -> None:
    said = "RuntimeError: shapes\nat line 3\nSIGQUIT received."
    code = f"import time; print({said!r}, flush=True); time.sleep(60)"
    server = Server("static", [sys.executable, "-c", code], {}, 1, tmp_path / "log")
    events: list[str | None] = []
    begin = time.monotonic()
    assert wait_ready([server], begin + 50, lambda s, e: events.append(e)) == []
    assert time.monotonic() - begin < 40
    assert events[0] is not None and events[0].startswith("the server is dying: RuntimeError")


def test_stop_ends_children_too(tmp_path: Path) -> None:
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    code = f"import subprocess, sys; subprocess.run({child})"
    server = Server("none", [sys.executable, "-c", code], {}, 1, tmp_path / "log")
    time.sleep(0.5)
    assert server.has_processes()
    stop([server], grace_s=2.0)
    assert not server.has_processes()
