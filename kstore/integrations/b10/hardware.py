"""What b10-transfer treats as the environment of its archives: the GPU's name and the CUDA version, nothing else.

Run as a program, it prints these as JSON, in its last line: a process that is not going to use CUDA itself does not
start CUDA.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import subprocess
import sys

from kstore.environment.interpreter import own_interpreter

_TIMEOUT_S = 120.0


def archive_key() -> str | None:
    """The 16 hexadecimal digits in the names of archives for this hardware; None if torch cannot be asked."""
    try:
        facts = read_facts() if "torch" in sys.modules else _ask()
    except Exception:
        logging.getLogger("kstore").debug("kstore: torch cannot be asked for its device", exc_info=True)
        return None
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def read_facts() -> dict[str, str | None]:
    """The facts of the device that torch uses, or of the processor if torch sees no device."""
    import torch

    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {"device_name": device.name, "cuda_version": torch.version.cuda}
    return {
        "device_type": "cpu",
        "cpu_architecture": platform.machine(),
        "platform_system": platform.system(),
    }


def _ask() -> dict[str, str | None]:
    interpreter = own_interpreter()
    if not interpreter:  # Another Python may have a different torch.
        raise RuntimeError(f"{sys.executable} is not Python, so it cannot ask torch in a process of its own")
    done = subprocess.run([interpreter, "-P", __file__], capture_output=True, check=True, timeout=_TIMEOUT_S)
    facts: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return facts


if __name__ == "__main__":
    facts = read_facts()
    print("\n" + json.dumps(facts))  # What a sitecustomize or torch has printed may lack a line's end.
