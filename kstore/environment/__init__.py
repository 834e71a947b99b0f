"""Where this process runs: which GPU, which software, which host. Nothing here imports torch."""

from __future__ import annotations

from kstore.environment.gpu import gpu_slug, is_cpu
from kstore.environment.host import Host, HostUnknown, boot, detect_host, host_hint, machine_of, surroundings
from kstore.environment.influences import key_facts
from kstore.environment.software import Environment, detect_environment, has_only_kstore

__all__ = [
    "Environment",
    "Host",
    "HostUnknown",
    "boot",
    "detect_environment",
    "detect_host",
    "gpu_slug",
    "has_only_kstore",
    "host_hint",
    "is_cpu",
    "key_facts",
    "machine_of",
    "surroundings",
]
