"""Pure-PyTorch stand-ins that let the real SGLang run on any CPU, without AMX and without a GPU."""
