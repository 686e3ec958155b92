"""``python -m spec_toggle.demo``: a real server switches under a load that rises and falls."""
