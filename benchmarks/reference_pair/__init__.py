"""A small real pair: SmolLM2-135M-Instruct, and an EAGLE-3 head trained on text of its own."""
