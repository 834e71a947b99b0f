from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterable
from pathlib import Path

import pytest

from kstore.components import load_table
from kstore.components.placement import Placement, place_components
from kstore.components.table import parse_table
from kstore.components.variables import MANAGED, default_folder, read_managed, set_variables

ROOT = "/roots/0"


def place(environ: dict[str, str], names: Iterable[str] = ("inductor",), *, before_import: bool = True) -> Placement:
    return place_components(load_table(), names, ROOT, environ, before_import=before_import)


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `import torch._dynamo` leaves in the environment."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.ModuleType("torch._dynamo"))
    return {"TORCHINDUCTOR_CACHE_DIR": default_folder(load_table()["inductor"])}


def test_every_component_goes_below_the_root() -> None:
    placement = place({}, load_table())
    assert set(placement.folders) == set(load_table())
    assert len(set(placement.folders.values())) == len(load_table())
    assert all(folder.startswith(f"{ROOT}/") for folder in placement.folders.values())
    along = {variable for component in load_table().values() for variable in component.along}
    assert set(placement.variables) == {component.variable for component in load_table().values()} | along
    assert placement.notes == ()


def test_only_the_named_components_are_placed() -> None:
    placement = place({}, ["triton"])
    assert placement == Placement({"triton": f"{ROOT}/triton"}, {"TRITON_CACHE_DIR": f"{ROOT}/triton"}, (), {})


def test_what_the_user_set_is_respected() -> None:
    for before_import in (True, False):
        placement = place({"TORCHINDUCTOR_CACHE_DIR": "/mine"}, before_import=before_import)
        assert placement == Placement({"inductor": "/mine"}, {}, (), {})


def test_a_relative_folder_of_the_user_is_made_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert place({"TORCHINDUCTOR_CACHE_DIR": "usr/mine"}).folders == {"inductor": "/usr/mine"}


def test_the_address_of_a_bucket_is_left_to_the_program_and_no_folder_is_made_of_it() -> None:
    placement = place({"TRITON_CACHE_DIR": "gs://bucket/kernels"}, ["inductor", "triton"])
    assert placement.folders == {"inductor": f"{ROOT}/inductor"}
    assert placement.notes == ("TRITON_CACHE_DIR is set: Triton is left to it",)


def test_what_kstore_set_is_overridden() -> None:
    environ: dict[str, str] = {}
    set_variables({"TORCHINDUCTOR_CACHE_DIR": "/roots/9/inductor"}, environ)
    assert place(environ).folders == {"inductor": f"{ROOT}/inductor"}


def test_children_inherit_what_kstore_set() -> None:
    """The list travels in the environment; a variable that the user has changed since is the user's."""
    environ: dict[str, str] = {}
    set_variables({"TORCHINDUCTOR_CACHE_DIR": "/a", "TRITON_CACHE_DIR": "/b"}, environ)
    set_variables({"TRITON_CACHE_DIR": "/c=d"}, environ)
    assert read_managed(environ) == {"TORCHINDUCTOR_CACHE_DIR": "/a", "TRITON_CACHE_DIR": "/c=d"}
    child = dict(environ) | {"TORCHINDUCTOR_CACHE_DIR": "/mine"}
    placement = place(child, ["inductor", "triton"])
    assert placement.folders == {"inductor": "/mine", "triton": f"{ROOT}/triton"}


SEVERAL = parse_table('[x]\nvariable = "X_DIR"\nalong = { X_OTHER = "none" }')


@pytest.mark.parametrize(
    ("environ", "variables"),
    [
        ({}, {"X_DIR": f"{ROOT}/x", "X_OTHER": "none"}),
        ({"X_OTHER": "all"}, {"X_DIR": f"{ROOT}/x"}),
        ({"X_OTHER": ""}, {"X_DIR": f"{ROOT}/x"}),
        ({"X_DIR": "/mine"}, {}),
    ],
)
def test_what_is_set_along_with_a_variable_is_set_where_nobody_has(
    environ: dict[str, str], variables: dict[str, str]
) -> None:
    assert place_components(SEVERAL, ["x"], ROOT, environ, before_import=True).variables == variables


ALONE = parse_table('[x]\nvariable = "X_DIR"\nseveral = ["X_HOSTS", "X_SIZE"]')


@pytest.mark.parametrize(
    ("environ", "folders"),
    [
        ({"X_SIZE": "1", "X_HOSTS": ""}, {"x": f"{ROOT}/x"}),
        ({"X_SIZE": "2"}, {}),
        ({"X_HOSTS": "host-1:1234"}, {}),
        ({"X_SIZE": "2", "X_DIR": "/mine"}, {"x": "/mine"}),
    ],
)
def test_one_process_of_several_is_left_alone_unless_the_user_has_chosen(
    environ: dict[str, str], folders: dict[str, str]
) -> None:
    placement = place_components(ALONE, ["x"], ROOT, environ, before_import=True)
    assert placement.folders == folders
    assert placement.variables.keys() == ({"X_DIR"} if folders == {"x": f"{ROOT}/x"} else set())
    assert placement.notes == ()


def test_what_kstore_set_along_is_set_again() -> None:
    environ: dict[str, str] = {}
    for _ in range(2):
        placement = place_components(SEVERAL, ["x"], ROOT, environ, before_import=True)
        assert placement.variables == {"X_DIR": f"{ROOT}/x", "X_OTHER": "none"}
        set_variables(placement.variables, environ)


def test_setting_variables_notes_that_it_was_kstore() -> None:
    environ = {"OTHER": "stays"}
    set_variables({"TRITON_CACHE_DIR": "/b"}, environ)
    assert environ == {"OTHER": "stays", "TRITON_CACHE_DIR": "/b", MANAGED: "TRITON_CACHE_DIR=/b"}


@pytest.mark.parametrize("folder", ["/a\nTRITON_CACHE_DIR=/b", "/a\n\tb", "/a\n", "/a\x0bb\u2028c\r"])
def test_a_folder_may_have_any_name(folder: str) -> None:
    """Otherwise its variable would be taken for the user's, and the next key's kernels would go there."""
    environ: dict[str, str] = {}
    set_variables({"TORCHINDUCTOR_CACHE_DIR": folder, "VLLM_CACHE_ROOT": "/v"}, environ)
    assert read_managed(environ) == {"TORCHINDUCTOR_CACHE_DIR": folder, "VLLM_CACHE_ROOT": "/v"}


@pytest.mark.parametrize("text", ["", "nonsense", "\n\n", "=x"])
def test_a_garbled_list_is_no_error(text: str) -> None:
    read_managed({MANAGED: text})
    assert place({MANAGED: text}).folders == {"inductor": f"{ROOT}/inductor"}


def test_a_default_pinned_by_an_import_is_not_the_users_choice(pinned: dict[str, str]) -> None:
    placement = place(pinned)
    assert placement.variables == {"TORCHINDUCTOR_CACHE_DIR": f"{ROOT}/inductor"}
    assert "torch._dynamo was imported before" in placement.notes[0]


def test_artifacts_are_collected_where_the_pinned_default_says(pinned: dict[str, str]) -> None:
    placement = place(pinned, before_import=False)
    assert placement == Placement({"inductor": pinned["TORCHINDUCTOR_CACHE_DIR"]}, {}, (), {})


def test_a_default_that_a_parents_import_pinned_is_no_choice_either() -> None:
    """Children inherit it, whatever they have imported themselves."""
    placement = place({"TORCHINDUCTOR_CACHE_DIR": default_folder(load_table()["inductor"])})
    variables = {"TORCHINDUCTOR_CACHE_DIR": f"{ROOT}/inductor"}
    assert placement == Placement({"inductor": f"{ROOT}/inductor"}, variables, (), {})


def test_whoever_means_the_default_ends_it_with_a_slash() -> None:
    default = default_folder(load_table()["inductor"])
    assert place({"TORCHINDUCTOR_CACHE_DIR": f"{default}/"}) == Placement({"inductor": default}, {}, (), {})


@pytest.mark.parametrize("inductor", [{}, {"TORCHINDUCTOR_CACHE_DIR": "/mine"}])
def test_what_torch_makes_of_it_for_triton_is_no_choice(inductor: dict[str, str]) -> None:
    """Torch sets it with the first kernel that it compiles."""
    above = inductor.get("TORCHINDUCTOR_CACHE_DIR", default_folder(load_table()["inductor"]))
    environ = inductor | {"TRITON_CACHE_DIR": f"{above}/triton/0"}
    assert place(environ, ["triton"]).variables == {"TRITON_CACHE_DIR": f"{ROOT}/triton"}
    assert place(environ, ["triton"], before_import=False).folders == {"triton": f"{above}/triton/0"}


@pytest.mark.parametrize("folder", ["/mine/triton", "/mine/triton/kernels", "/mine/other/0", "/other/triton/0"])
def test_another_folder_for_triton_is_the_users_choice(folder: str) -> None:
    environ = {"TORCHINDUCTOR_CACHE_DIR": "/mine", "TRITON_CACHE_DIR": folder}
    assert place(environ, ["triton"]) == Placement({"triton": folder}, {}, (), {})


def test_another_value_with_the_import_is_the_users_choice(pinned: dict[str, str]) -> None:
    assert place({"TORCHINDUCTOR_CACHE_DIR": "/mine"}).folders == {"inductor": "/mine"}


def test_a_variable_that_names_a_file() -> None:
    placement = place({}, ["tunableop"])
    assert placement.folders == {"tunableop": f"{ROOT}/tunableop"}
    assert placement.variables == {"PYTORCH_TUNABLEOP_FILENAME": f"{ROOT}/tunableop/tunableop_results.csv"}


def test_a_file_that_the_user_named_is_left_to_the_user() -> None:
    placement = place({"PYTORCH_TUNABLEOP_FILENAME": "/mine.csv"}, ["tunableop"])
    assert (placement.folders, placement.variables) == ({}, {})
    assert "PYTORCH_TUNABLEOP_FILENAME is set" in placement.notes[0]


def test_a_cache_may_be_in_a_subfolder_of_the_variables_folder() -> None:
    assert place({}, ["flashinfer"]).folders == {"flashinfer": f"{ROOT}/flashinfer/.cache/flashinfer"}
    assert place({"FLASHINFER_WORKSPACE_BASE": "/mine"}, ["flashinfer"]).folders == {
        "flashinfer": "/mine/.cache/flashinfer"
    }


def test_the_default_of_inductor_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/temporary")
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    assert default_folder(load_table()["inductor"]) == "/temporary/torchinductor_somebody"


def test_the_default_of_triton_is_below_its_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_HOME", "/scratch")
    assert default_folder(load_table()["triton"]) == "/scratch/.triton/cache"
    monkeypatch.delenv("TRITON_HOME")
    assert default_folder(load_table()["triton"]) == os.path.expanduser("~/.triton/cache")


def test_the_default_of_vllm_is_below_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch")
    assert default_folder(load_table()["vllm"]) == "/scratch/vllm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_folder(load_table()["vllm"]) == os.path.expanduser("~/.cache/vllm")


def test_a_user_is_called_by_what_may_be_in_a_file_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: 'CORP\\a/b:c*d?e"f<g>h|i')
    assert default_folder(load_table()["inductor"]).endswith("/torchinductor_CORP_a_b_c_d_e_f_g_h_i")


def test_a_user_without_a_name_is_called_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    assert default_folder(load_table()["inductor"]).endswith("torchinductor_uid_4711")


def test_every_default_can_be_named() -> None:
    assert all(default_folder(component) for component in load_table().values() if component.default)


def test_where_no_temporary_folder_can_be_written_nothing_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    environ = {"TRITON_CACHE_DIR": str(tmp_path / "own")}
    placement = place_components(load_table(), ["triton"], str(tmp_path), environ, before_import=True)
    assert placement.folders == {"triton": str(tmp_path / "own")}
