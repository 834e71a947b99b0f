from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.environment import gpu, gpu_slug
from kstore.environment.gpu import amd_slug, nvidia_slug

H100 = "NVIDIA H100 80GB HBM3"
ADA = "NVIDIA RTX 6000 Ada Generation"
BLACKWELL = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
ADA_SLUG = "nvidia-rtx-6000-ada-generation-sm89"
BLACKWELL_SLUG = "nvidia-rtx-pro-6000-blackwell-server-edition-sm120"
REPOSITORY = Path(gpu.__file__).parents[2]


@dataclass
class Instance:
    name: str
    uuid: str


@dataclass
class Gpu:
    name: str = H100
    capability: tuple[int, int] = (9, 0)
    uuid: str = "GPU-11111111-0000-0000-0000-000000000000"
    instances: list[Instance | None] | None = None
    closed: bool = False


class NVMLError(Exception):
    pass


class FakeNvml:
    """The part of the pynvml module that reads names, for machines that tests make up."""

    NVMLError = NVMLError

    def __init__(self, gpus: list[Gpu]) -> None:
        self.gpus = gpus
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if self.gpus[index].closed:
            raise NVMLError("no permission")
        return self.gpus[index]

    def nvmlDeviceGetName(self, handle: Gpu | Instance) -> str:
        return handle.name

    def nvmlDeviceGetUUID(self, handle: Gpu | Instance) -> str:
        return handle.uuid

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:
        return handle.capability

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:
        if handle.capability < (8, 0):
            raise NVMLError("not supported")
        return [int(handle.instances is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return len(handle.instances or [])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int) -> Instance:
        instance = (handle.instances or [])[index]
        if instance is None:
            raise NVMLError("not found")
        return instance


class AbsentNvml(FakeNvml):
    def nvmlInit(self) -> None:
        raise NVMLError("library not found")


class Machine:
    """Puts made-up GPUs, or none, where detection looks for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._monkeypatch = monkeypatch
        self.driver_node = tmp_path / "nvidiactl"
        monkeypatch.setattr(gpu, "_NVIDIA_NODE", self.driver_node)
        monkeypatch.setattr(gpu, "amd_slug", lambda environ: None)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        self.install(AbsentNvml([]))

    def install(self, nvml: FakeNvml) -> FakeNvml:
        self._monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    def nvidia(self, *gpus: Gpu) -> FakeNvml:
        return self.install(FakeNvml(list(gpus)))

    def torch(self, *names: str, initialized: bool = True, hip: str | None = None) -> None:
        """The first of the named devices has another capability than the rest."""
        cuda = SimpleNamespace(
            is_initialized=lambda: initialized,
            get_device_name=lambda index: names[index],
            get_device_capability=lambda index: (8, 0) if index else (9, 0),
        )
        torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))
        self._monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


@pytest.fixture
def two_models(machine: Machine) -> None:
    """Two models; the one that comes later on the bus is the faster."""
    machine.nvidia(
        Gpu(ADA, (8, 9), "GPU-aaaa1111-0000"),
        Gpu(BLACKWELL, (12, 0), "GPU-aaaa2222-0000"),
    )


FAKE_DRIVER = """
#include <cstdlib>
#include <cstring>
static const char *const names[] = {"NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX 6000 Ada Generation"};
static const int capability[2][2] = {{12, 0}, {8, 9}};
static int first() { const char *v = std::getenv("CUDA_VISIBLE_DEVICES"); return v ? std::atoi(v) : 0; }
extern "C" {
int cuInit(unsigned) { return std::getenv("BROKEN") ? 999 : first() > 1 ? 100 : 0; }
int cuDeviceGet(int *device, int) { *device = first(); return 0; }
int cuDeviceGetName(char *name, int size, int device) { std::strncpy(name, names[device], size); return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = capability[device][which - 75]; return 0; }
}
"""


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a CUDA driver that has the two models in its own order, fastest first."""
    if not shutil.which("g++"):
        pytest.skip("no g++ to build a stand-in for the CUDA driver")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "cuda.cpp").write_text(FAKE_DRIVER)
    command = ["g++", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "cuda.cpp")]
    subprocess.run(command, check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


# ---- names


@pytest.mark.parametrize(
    ("name", "capability", "slug"),
    [
        (H100, (9, 0), "nvidia-h100-80gb-hbm3-sm90"),
        (ADA, (8, 9), ADA_SLUG),
        (BLACKWELL, (12, 0), BLACKWELL_SLUG),
        ("Tesla V100-SXM2-16GB", (7, 0), "nvidia-tesla-v100-sxm2-16gb-sm70"),
        ("NVIDIA GeForce RTX 4090 (Laptop)", (8, 9), "nvidia-geforce-rtx-4090-laptop-sm89"),
    ],
)
def test_the_slug_is_the_full_name_and_the_architecture(
    machine: Machine, name: str, capability: tuple[int, int], slug: str
) -> None:
    machine.nvidia(Gpu(name, capability))
    assert gpu_slug({}) == slug


def test_a_vendor_prefix_that_older_drivers_leave_out_makes_no_difference(machine: Machine) -> None:
    machine.nvidia(Gpu("GeForce RTX 3090", (8, 6)))
    old = gpu_slug({})
    machine.nvidia(Gpu("NVIDIA GeForce RTX 3090", (8, 6)))
    assert gpu_slug({}) == old


def test_bytes_from_an_old_nvml_binding_are_text(machine: Machine) -> None:
    machine.nvidia(Gpu(H100.encode(), uuid=b"GPU-1"))  # type: ignore[arg-type]
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "GPU-1"}) == "nvidia-h100-80gb-hbm3-sm90"


def test_without_a_gpu_it_is_the_cpu(machine: Machine) -> None:
    assert gpu_slug({}) == f"cpu-{platform.machine().lower()}"


def test_without_the_nvml_binding_it_is_the_cpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_slug({}).startswith("cpu-")


def test_nvml_is_closed_again(machine: Machine) -> None:
    nvml = machine.nvidia(Gpu())
    gpu_slug({})
    assert nvml.open == 0


def test_a_gpu_that_may_not_be_opened_is_not_counted(machine: Machine) -> None:
    machine.nvidia(Gpu("NVIDIA A100", (8, 0), closed=True), Gpu())
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "0"}) == "nvidia-h100-80gb-hbm3-sm90"
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "1"}).startswith("cpu-")


# ---- CUDA_VISIBLE_DEVICES


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "2", "99,0", "-1,0", "GPU-ffff", "GPU-,0", ","])
def test_an_invalid_first_entry_hides_all_gpus(machine: Machine, hidden: str) -> None:
    machine.nvidia(Gpu(uuid="GPU-aaaa1111"), Gpu(uuid="GPU-aaaa2222"))
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": hidden}).startswith("cpu-")


@pytest.mark.parametrize("shown", ["0", "1", " 1", "1,0", "0,99", "1gpu", "+1", "GPU-aaaa2", "GPU-aaaa2222,x"])
def test_any_of_equal_gpus_will_do(machine: Machine, shown: str) -> None:
    machine.nvidia(Gpu(uuid="GPU-aaaa1111"), Gpu(uuid="GPU-aaaa2222"))
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": shown}) == "nvidia-h100-80gb-hbm3-sm90"


@pytest.mark.usefixtures("two_models")
def test_in_bus_order_an_index_is_that_of_nvml() -> None:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert gpu_slug(order) == ADA_SLUG
    assert gpu_slug({**order, "CUDA_VISIBLE_DEVICES": "1,0"}) == BLACKWELL_SLUG


@pytest.mark.usefixtures("two_models")
def test_a_uuid_names_its_gpu_in_any_order() -> None:
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "GPU-aaaa1"}) == ADA_SLUG
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "GPU-aaaa2222-0000,GPU-aaaa1"}) == BLACKWELL_SLUG


@pytest.mark.usefixtures("two_models")
def test_a_uuid_prefix_of_several_gpus_is_invalid() -> None:
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}).startswith("cpu-")


# ---- the CUDA driver, asked in a process of its own


@pytest.mark.usefixtures("two_models")
def test_indices_of_different_models_are_those_of_cuda_itself(driver: dict[str, str]) -> None:
    assert gpu_slug(driver) == BLACKWELL_SLUG
    assert gpu_slug({**driver, "CUDA_VISIBLE_DEVICES": "1"}) == ADA_SLUG


@pytest.mark.usefixtures("two_models")
def test_a_driver_without_a_device_is_believed(driver: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_DRIVER_QUESTION", "print('[100, \"\", 0, 0]')")
    assert gpu_slug(driver).startswith("cpu-")


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize("trouble", [{"BROKEN": "1"}, {"LD_LIBRARY_PATH": "/nonexistent"}])
def test_a_driver_that_does_not_answer_leaves_the_order_of_nvml(
    driver: dict[str, str], trouble: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_system_driver = gpu._DRIVER_QUESTION.replace(
        '"libcuda.so.1"', '__import__("os").environ["LD_LIBRARY_PATH"] + "/libcuda.so.1"'
    )
    monkeypatch.setattr(gpu, "_DRIVER_QUESTION", without_system_driver)
    assert gpu_slug({**driver, **trouble}) == ADA_SLUG
    assert gpu_slug({**driver, **trouble, "CUDA_VISIBLE_DEVICES": "1"}) == BLACKWELL_SLUG


@pytest.mark.usefixtures("two_models")
def test_a_driver_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = f"import time; time.sleep(60); print('[0, \"{BLACKWELL}\", 12, 0]')"
    monkeypatch.setattr(gpu, "_DRIVER_QUESTION", answer)
    monkeypatch.setattr(gpu, "_DRIVER_TIMEOUT_S", 0.1)
    assert gpu_slug({}) == ADA_SLUG


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize("name, is_frozen", [("serve", True), ("python-serve", True), ("uwsgi", False)])
def test_a_bundle_or_a_server_with_python_in_it_is_not_started_again(
    driver: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, is_frozen: bool
) -> None:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "frozen", is_frozen, raising=False)

    assert gpu_slug({**driver, "PATH": str(tmp_path)}) == BLACKWELL_SLUG
    assert gpu_slug({**driver, "PATH": "/nonexistent"}) == ADA_SLUG
    assert not (tmp_path / "started").exists()


def test_equal_gpus_need_no_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.nvidia(Gpu(), Gpu())
    monkeypatch.setattr(gpu, "_ask_driver", lambda environ: pytest.fail("asked"))
    assert nvidia_slug({"CUDA_VISIBLE_DEVICES": "1"}) == "nvidia-h100-80gb-hbm3-sm90"


def test_a_container_with_cuda_but_without_nvml_asks_the_driver(machine: Machine, driver: dict[str, str]) -> None:
    machine.driver_node.touch()
    assert gpu_slug({**driver, "CUDA_VISIBLE_DEVICES": "1"}) == ADA_SLUG


# ---- MIG


SMALL = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
LARGE = "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
SMALL_SLUG = "nvidia-h100-80gb-hbm3-mig-1g-10gb-sm90"
LARGE_SLUG = "nvidia-h100-80gb-hbm3-mig-3g-40gb-sm90"


def partitioned(*names: str) -> Gpu:
    instances: list[Instance | None] = [Instance(name, f"MIG-{i}{i}{i}") for i, name in enumerate(names)]
    return Gpu(uuid="GPU-mig", instances=[None, *instances, None])


def test_a_mig_uuid_names_the_instance_with_its_parents_architecture(machine: Machine) -> None:
    machine.nvidia(Gpu(), partitioned(SMALL, LARGE))
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "MIG-000"}) == SMALL_SLUG
    assert gpu_slug({"CUDA_VISIBLE_DEVICES": "MIG-111"}) == LARGE_SLUG


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "GPU-mig"}])
def test_a_partitioned_gpu_is_its_instances(machine: Machine, environ: Mapping[str, str]) -> None:
    machine.nvidia(partitioned(SMALL, SMALL))
    assert gpu_slug(environ) == SMALL_SLUG


def test_a_partitioned_gpu_without_instances_cannot_be_used(machine: Machine) -> None:
    machine.nvidia(partitioned())
    assert gpu_slug({}).startswith("cpu-")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "MIG-GPU-11111111-0000/1/0"},
    ],
)
def test_where_nvml_cannot_tell_which_instance_cuda_is_asked(
    machine: Machine, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.nvidia(Gpu(), partitioned(SMALL, LARGE))
    monkeypatch.setattr(gpu, "_ask_driver", lambda environ: "the-answer-of-cuda")
    assert gpu_slug(environ) == "the-answer-of-cuda"


# ---- torch


def test_where_torch_has_started_cuda_its_answer_counts(machine: Machine) -> None:
    machine.nvidia(Gpu(ADA, (8, 9)), Gpu(H100))
    machine.torch(H100, ADA)
    assert gpu_slug() == "nvidia-h100-80gb-hbm3-sm90"
    assert gpu_slug(dict(os.environ)) == "nvidia-h100-80gb-hbm3-sm90"


def test_the_slug_is_the_same_through_torch_and_through_nvml(machine: Machine) -> None:
    machine.nvidia(Gpu(SMALL))
    through_nvml = gpu_slug({})
    machine.torch(SMALL)
    machine.install(AbsentNvml([]))
    assert gpu_slug() == through_nvml


def test_torch_that_has_not_started_cuda_is_left_alone(machine: Machine) -> None:
    machine.nvidia(Gpu())
    machine.torch(ADA, initialized=False)
    assert gpu_slug() == "nvidia-h100-80gb-hbm3-sm90"


@pytest.mark.parametrize("environ", [{"CUDA_VISIBLE_DEVICES": "GPU-1"}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}])
def test_torch_does_not_speak_for_a_child_with_other_devices(machine: Machine, environ: dict[str, str]) -> None:
    machine.nvidia(Gpu(uuid="GPU-1"))
    machine.torch(ADA)
    assert gpu_slug(environ) == "nvidia-h100-80gb-hbm3-sm90"


def test_a_half_imported_torch_does_no_harm(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.nvidia(Gpu())
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert gpu_slug() == "nvidia-h100-80gb-hbm3-sm90"


def test_on_this_machine_torch_and_detection_agree() -> None:
    """The only test on a real GPU; on other machines both must see that there is none."""
    script = f"""
import json, sys
sys.path.insert(0, {str(REPOSITORY)!r})
from kstore.environment import gpu_slug
before = gpu_slug()
assert "torch" not in sys.modules
import torch
usable = torch.cuda.is_available()
if usable:
    torch.cuda.init()
print(json.dumps([before, gpu_slug(), usable, bool(torch.version.cuda or torch.version.hip)]))
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout
    before, after, usable, gpu_build = json.loads(output)
    assert before == after
    if gpu_build:
        assert before.startswith("cpu-") is not usable


# ---- AMD


@dataclass
class Board:
    version: int
    product: str = ""
    location: int = 0x1B00
    unique: int = 0
    device: int = 0x74A1
    readable: bool = True
    domain: int = 0


MI300X = Board(90402, "AMD Instinct MI300X", 0x1B00, unique=0x0123456789ABCDEF)
MI210 = Board(90010, "AMD Instinct MI210", 0x2303, unique=0xFEDCBA9876543210)
MI300X_SLUG = "amd-instinct-mi300x-gfx942"
MI210_SLUG = "amd-instinct-mi210-gfx90a"


class AmdMachine:
    """A small /sys with the compute topology: node 0 is the CPU."""

    def __init__(self, folder: Path) -> None:
        self.sysfs, self.node = folder / "sys", folder / "kfd"

    def build(self, *boards: Board) -> None:
        self.node.touch()
        self._topology_node(0, {"cpu_cores_count": 64, "gfx_target_version": 0})
        for number, board in enumerate(boards, start=1):
            self._board(number, board)

    def _board(self, number: int, board: Board) -> None:
        values = {
            "gfx_target_version": board.version,
            "location_id": board.location,
            "domain": board.domain,
            "device_id": board.device,
            "unique_id": board.unique,
        }
        properties = self._topology_node(number, values)
        if not board.readable:
            properties.unlink()
            properties.mkdir()  # reading it fails, for root too
        bus, slot, function = board.location >> 8, board.location >> 3 & 31, board.location & 7
        device = self.sysfs / f"bus/pci/devices/{board.domain:04x}:{bus:02x}:{slot:02x}.{function}"
        device.mkdir(parents=True)
        (device / "revision").write_text("0xc8\n")
        if board.product:
            (device / "product_name").write_text(board.product + "\n")

    def _topology_node(self, number: int, values: Mapping[str, int]) -> Path:
        folder = self.sysfs / f"class/kfd/kfd/topology/nodes/{number}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text("".join(f"{name} {value}\n" for name, value in values.items()))
        return folder / "properties"

    def slug(self, **environ: str) -> str | None:
        return amd_slug(environ, sysfs=self.sysfs, node=self.node)


@pytest.fixture
def amd(tmp_path: Path) -> AmdMachine:
    return AmdMachine(tmp_path)


@pytest.mark.parametrize(
    ("version", "architecture"),
    [(90402, "gfx942"), (110000, "gfx1100"), (90010, "gfx90a"), (90500, "gfx950"), (110501, "gfx1151")],
)
def test_the_target_version_is_spelled_as_the_compiler_does(amd: AmdMachine, version: int, architecture: str) -> None:
    amd.build(Board(version, "AMD Instinct"))
    assert amd.slug() == f"amd-instinct-{architecture}"


def test_the_first_amd_gpu_decides(amd: AmdMachine) -> None:
    amd.build(MI300X, MI210)
    assert amd.slug() == MI300X_SLUG


def test_nodes_are_in_numeric_order(amd: AmdMachine) -> None:
    boards = [Board(90402, "AMD Instinct MI300X", 0x100 * number) for number in range(1, 10)]
    amd.build(*boards, MI210)
    assert amd.slug(HIP_VISIBLE_DEVICES="1") == MI300X_SLUG
    assert amd.slug(HIP_VISIBLE_DEVICES="9") == MI210_SLUG


def test_a_board_without_a_name_is_its_pci_device_and_revision(amd: AmdMachine) -> None:
    amd.build(Board(110000, device=0x744C))
    assert amd.slug() == "amd-744c-c8-gfx1100"


def test_a_board_whose_name_is_empty_has_none(amd: AmdMachine) -> None:
    amd.build(Board(110000, "\n", device=0x744C))
    assert amd.slug() == "amd-744c-c8-gfx1100"


def test_a_board_is_known_by_its_whole_address(amd: AmdMachine) -> None:
    amd.build(
        Board(90402, "AMD Instinct MI300X", 0x1B2B, domain=1),
        Board(90402, "AMD Instinct MI300A", 0x1B2B),
        Board(90402, "AMD Instinct MI300X HF", 0x1B23, domain=1),
        Board(90402, "AMD Instinct MI325X", 0x1C2B, domain=1),
        Board(90402, "AMD Instinct MI308X", 0x1B2A, domain=1),
    )
    assert amd.slug() == MI300X_SLUG
    assert amd.slug(HIP_VISIBLE_DEVICES="4") == "amd-instinct-mi308x-gfx942"


@pytest.mark.parametrize(
    "environ",
    [
        {"HIP_VISIBLE_DEVICES": "1"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
        {"ROCR_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "1,0"},
        {"ROCR_VISIBLE_DEVICES": "1,7,0", "HIP_VISIBLE_DEVICES": "0"},
        {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "GPU-fedcba9876543210"},
        {"ROCR_VISIBLE_DEVICES": "GPU-FEDC, 0"},
    ],
)
def test_variables_select_amd_gpus(amd: AmdMachine, environ: dict[str, str]) -> None:
    amd.build(MI300X, MI210)
    assert amd.slug(**environ) == MI210_SLUG


@pytest.mark.parametrize(
    "environ",
    [
        {"HIP_VISIBLE_DEVICES": ""},
        {"HIP_VISIBLE_DEVICES": "-1"},
        {"HIP_VISIBLE_DEVICES": "2,0"},
        {"ROCR_VISIBLE_DEVICES": "GPU-99"},
        {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"},
        {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"},
    ],
)
def test_variables_hide_amd_gpus(amd: AmdMachine, environ: dict[str, str]) -> None:
    amd.build(MI300X, MI210)
    assert amd.slug(**environ) is None


def test_an_amd_gpu_of_another_container_is_not_counted(amd: AmdMachine) -> None:
    amd.build(Board(90402, "AMD Instinct MI300X", 0x100, readable=False), MI210)
    assert amd.slug() == MI210_SLUG


def test_without_access_to_the_compute_device_there_is_no_amd_gpu(amd: AmdMachine) -> None:
    amd.build(MI300X)
    amd.node.unlink()
    assert amd.slug() is None


def test_an_amd_gpu_is_found_where_nvidia_has_none(
    machine: Machine, amd: AmdMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(environ: Any) -> str | None:
        return amd_slug(environ, sysfs=amd.sysfs, node=amd.node)

    amd.build(MI300X)
    monkeypatch.setattr(gpu, "amd_slug", found)
    machine.torch("AMD Radeon Graphics", hip="7.0")
    assert gpu_slug() == MI300X_SLUG
