"""Where this process runs: which GPU, which software, which host. Nothing here imports torch."""

from __future__ import annotations

from kstore.environment.gpu import gpu_slug, is_cpu
from kstore.environment.host import Host, HostUnknown, boot, detect_host, host_hint, machine_of, surroundings
from kstore.environment.influences import key_facts
from kstore.environment.software import Environment, detect_environment, names_no_compiler

__all__ = [
    "Environment",
    "Host",
    "HostUnknown",
    "boot",
    "detect_environment",
    "detect_host",
    "gpu_slug",
    "host_hint",
    "is_cpu",
    "key_facts",
    "machine_of",
    "names_no_compiler",
    "surroundings",
]
