"""Which GPU the kernels are for, as one word made of the full device name and its architecture.

Compilers build for the first visible device and put its name in their cache keys, so that device is the one named.
Nothing here imports torch or starts CUDA in this process: CUDA started by a parent is unusable in a fork.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kstore.environment.interpreter import own_interpreter

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_DRIVER_TIMEOUT_S = 60.0  # eight GPUs without persistence mode need many seconds to wake up
_NO_DEVICE = (100, 101)  # CUDA_ERROR_NO_DEVICE, CUDA_ERROR_INVALID_DEVICE
_NVIDIA_NODE = Path("/dev/nvidiactl")
_KFD_NODE = Path("/dev/kfd")
_SYSFS = Path("/sys")

# 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_DRIVER_QUESTION = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
name = ctypes.create_string_buffer(256)
status = (
    cuda.cuInit(0)
    or cuda.cuDeviceGet(ctypes.byref(device), 0)
    or cuda.cuDeviceGetName(name, 256, device)
    or cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    or cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
)
print(json.dumps([status, name.value.decode(), major.value, minor.value]))
"""


class _Unanswered(Exception):
    """The CUDA driver could not be asked."""


class _Device(NamedTuple):
    """What CUDA would enumerate as one device: a whole GPU, or one MIG instance of it."""

    uuid: str
    slug: str


class _NvidiaGpu(NamedTuple):
    """One GPU as NVML lists it."""

    uuid: str
    partitioned: bool
    """Whether it is in MIG mode: its devices are then its instances."""
    devices: tuple[_Device, ...]


class _AmdGpu(NamedTuple):
    """One GPU as the kernel's compute topology lists it."""

    uuid: str
    slug: str


def gpu_slug(environ: Mapping[str, str] = os.environ) -> str:
    """Name the first GPU that a process with `environ` would see, such as `nvidia-h100-80gb-hbm3-sm90`.

    It contains the whole device name, so that an RTX 6000 Ada and an RTX PRO 6000 do not share a slug. Never raises:
    without a usable GPU the answer is `cpu-<machine>`.
    """
    for detect in (_initialized_torch_slug, nvidia_slug, amd_slug):
        try:
            slug = detect(environ)
        except Exception:  # whatever a driver does, the job must start
            _log.debug("%s failed", detect.__name__, exc_info=True)
            continue
        if slug:
            return slug
    return f"cpu-{platform.machine().lower()}"


def is_cpu(slug: str) -> bool:
    """Whether `gpu_slug` gave this name because there is no GPU."""
    return slug.startswith("cpu-")


def _slug(vendor: str, name: str, architecture: str) -> str:
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    if words[:1] != [vendor]:  # "Tesla V100", and GeForce names from drivers before 470, have no vendor
        words.insert(0, vendor)
    return "-".join([*words, architecture])


# ---- torch, if it has started CUDA already


def _initialized_torch_slug(environ: Mapping[str, str]) -> str | None:
    """Ask torch if it has CUDA running: the devices that it sees were settled then, whatever was set since.

    ROCm goes through sysfs even then, because HIP takes device names from a file that some images lack.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not _is_our_own(environ):
        return None
    if torch.version.hip or not torch.cuda.is_initialized():
        return None
    major, minor = torch.cuda.get_device_capability(0)
    return _slug("nvidia", torch.cuda.get_device_name(0), f"sm{major}{minor}")


def _is_our_own(environ: Mapping[str, str]) -> bool:
    """Whether `environ` selects the same devices as this process's own environment, and not a child's."""
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    return all(environ.get(name) == os.environ.get(name) for name in names)


# ---- NVIDIA


def nvidia_slug(environ: Mapping[str, str]) -> str | None:
    """Name the device that CUDA would number 0, or return None if it would see none.

    Follows the CUDA programming guide on CUDA_VISIBLE_DEVICES: entries are indices or unique UUID prefixes,
    and an invalid entry hides itself and all after it, so the first entry alone decides.
    """
    entry = environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not re.match(r"\+?\d|GPU-|MIG-", entry):
        return None
    try:
        gpus = _nvml_gpus()
    except Exception:  # a container given only the "compute" driver capability has CUDA but no NVML
        return _ask_driver(environ) if _NVIDIA_NODE.exists() else None
    devices = _candidates(entry, gpus, by_bus_id=environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
    slugs = {device.slug for device in devices}
    if len(slugs) == 1:
        return slugs.pop()
    if not slugs and not entry.startswith("MIG-"):
        return None
    try:
        return _ask_driver(environ)
    except _Unanswered as error:
        _log.debug("taking the first GPU in bus order: %s", error)
        return devices[0].slug if devices else None


def _candidates(entry: str, gpus: Sequence[_NvidiaGpu], *, by_bus_id: bool) -> list[_Device]:
    """All devices that CUDA might number 0, likeliest first: more than one where NVML cannot tell.

    NVML orders by PCI bus id, CUDA by speed unless told otherwise. With MIG, CUDA takes one instance of its
    own choosing, and prefers one to any whole GPU (MIG user guide, "CUDA device enumeration").
    """
    if entry.startswith("MIG-"):
        return _only([device for device in _devices(gpus) if device.uuid.startswith(entry)])
    if entry.startswith("GPU-"):
        return _devices(_only([gpu for gpu in gpus if gpu.uuid.startswith(entry)]))
    index = _leading_integer(entry)
    certain = by_bus_id and not any(gpu.partitioned for gpu in gpus)
    if certain or index >= len(gpus):
        return _devices(gpus[index : index + 1])
    return _devices([*gpus[index:], *gpus[:index]])


def _devices(gpus: Sequence[_NvidiaGpu]) -> list[_Device]:
    return [device for gpu in gpus for device in gpu.devices]


def _only(matches: list[_T]) -> list[_T]:
    """The one match, or nothing: a prefix that fits several devices is as invalid as one that fits none."""
    return matches if len(matches) == 1 else []


def _leading_integer(entry: str) -> int:
    """CUDA reads indices as strtoul does: "1gpu" is 1."""
    match = re.match(r"\+?(\d+)", entry)
    assert match
    return int(match[1])


def _nvml_gpus() -> list[_NvidiaGpu]:
    """All GPUs that this process may open, in bus order, as CUDA counts them."""
    if "pynvml" not in sys.modules:
        ctypes.CDLL("libnvidia-ml.so.1")  # what pynvml would load; importing pynvml takes longer than a whole commit
    pynvml = importlib.import_module("pynvml")  # it has no stubs, and is needed only here
    pynvml.nvmlInit()
    try:
        gpus = [_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()
    return [gpu for gpu in gpus if gpu]


def _nvml_gpu(nvml: Any, index: int) -> _NvidiaGpu | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        instances = _mig_instances(nvml, handle)
        units = [handle] if instances is None else instances
        devices = tuple(_nvml_device(nvml, unit, f"sm{major}{minor}") for unit in units)
        return _NvidiaGpu(_text(nvml.nvmlDeviceGetUUID(handle)), instances is not None, devices)
    except nvml.NVMLError:  # listed, but closed to this process or fallen off the bus: CUDA skips it too
        return None


def _nvml_device(nvml: Any, handle: Any, architecture: str) -> _Device:
    name = _text(nvml.nvmlDeviceGetName(handle))
    return _Device(_text(nvml.nvmlDeviceGetUUID(handle)), _slug("nvidia", name, architecture))


def _mig_instances(nvml: Any, handle: Any) -> list[Any] | None:
    """Handles of the MIG instances of a GPU in MIG mode, or None for a GPU that is whole."""
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # most GPUs do not support MIG
        return None
    if not current:
        return None
    instances = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instances.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
        except nvml.NVMLError:  # nothing in this slot
            continue
    return instances


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # nvidia-ml-py before 11.5 returns bytes


def _ask_driver(environ: Mapping[str, str]) -> str | None:
    """Let CUDA itself name device 0, in a process of its own; None if it has no device.

    Raises:
        _Unanswered: there is no driver, or it failed.
    """
    interpreter = own_interpreter() or shutil.which("python3", path=environ.get("PATH", os.defpath))
    if not interpreter:
        raise _Unanswered(f"{sys.executable} is not Python, and there is no python3")
    command = [interpreter, "-I", "-S", "-c", _DRIVER_QUESTION]
    try:
        answer = subprocess.run(
            command,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            close_fds=False,  # In a vfork, which all threads wait for, a close may hang: FUSE asks the mount each time.
            capture_output=True,
            check=True,
            timeout=_DRIVER_TIMEOUT_S,
        ).stdout
        status, name, major, minor = json.loads(answer)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise _Unanswered(str(error)) from error
    if status in _NO_DEVICE:
        return None
    if status:
        raise _Unanswered(f"the CUDA driver returned error {status}")
    return _slug("nvidia", name, f"sm{major}{minor}")


# ---- AMD


def amd_slug(environ: Mapping[str, str], *, sysfs: Path = _SYSFS, node: Path = _KFD_NODE) -> str | None:
    """Name the device that HIP would number 0, or return None if it would see none.

    ROCR_VISIBLE_DEVICES selects first; HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, selects among what that left.
    sysfs shows every container all GPUs of the machine; `node` can be opened only if one was granted.
    """
    if not os.access(node, os.R_OK | os.W_OK):
        return None
    gpus = _visible(environ.get("ROCR_VISIBLE_DEVICES"), _kfd_gpus(sysfs))
    hip = environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES"))
    visible = _visible(hip, gpus)
    return visible[0].slug if visible else None


def _visible(selection: str | None, gpus: list[_AmdGpu]) -> list[_AmdGpu]:
    """The GPUs that a selection leaves. An invalid entry hides itself and all after it."""
    if selection is None:
        return gpus
    chosen: list[_AmdGpu] = []
    for entry in selection.split(","):
        selected = _selected(entry.strip().upper(), gpus)
        if not selected:
            break
        chosen += selected
    return chosen


def _selected(entry: str, gpus: list[_AmdGpu]) -> list[_AmdGpu]:
    if entry.startswith("GPU-"):
        return _only([gpu for gpu in gpus if gpu.uuid.startswith(entry)])
    return gpus[int(entry) : int(entry) + 1] if re.fullmatch(r"[0-9]+", entry) else []


def _kfd_gpus(sysfs: Path) -> list[_AmdGpu]:
    """The GPUs among the nodes of the kernel's compute topology, in its order, which is also HIP's."""
    nodes = sysfs / "class/kfd/kfd/topology/nodes"
    files = sorted(nodes.glob("*/properties"), key=lambda path: int(path.parent.name))
    gpus = [_kfd_gpu(sysfs, path) for path in files]
    return [gpu for gpu in gpus if gpu]


def _kfd_gpu(sysfs: Path, properties: Path) -> _AmdGpu | None:
    try:
        lines = [line.split() for line in properties.read_text("utf-8", "replace").splitlines()]
    except OSError:  # the kernel refuses the properties of a GPU that this container was not given
        return None
    values = {line[0]: int(line[1]) for line in lines if len(line) == 2}
    version = values.get("gfx_target_version", 0)
    if not version:  # a CPU is a node too
        return None
    slug = _slug("amd", _amd_name(sysfs, values), _gfx(version))
    return _AmdGpu(f"GPU-{values.get('unique_id', 0):016X}", slug)


def _gfx(version: int) -> str:
    """90402 is gfx942, 110000 gfx1100, 90010 gfx90a: the last two decimal digits become one in hex."""
    return f"gfx{version // 10000}{version // 100 % 100}{version % 100:x}"


def _amd_name(sysfs: Path, values: Mapping[str, int]) -> str:
    """The name that the board carries, else its PCI device and revision.

    Not the marketing name: that comes from libdrm's table, whose presence and version differ between images.
    The PCI address is used because a compute partition's own DRM device has no name.
    """
    bus, function = values.get("location_id", 0) >> 8 & 0xFF, values.get("location_id", 0) & 0xFF
    address = f"{values.get('domain', 0):04x}:{bus:02x}:{function >> 3:02x}.{function & 7}"
    device = sysfs / "bus/pci/devices" / address
    return _line(device / "product_name") or f"{values.get('device_id', 0):04x} {_line(device / 'revision')}"


def _line(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip().removeprefix("0x")
    except OSError:
        return ""
