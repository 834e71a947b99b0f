from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kstore.blobs import Layout
from kstore.components import load_table
from kstore.errors import UsageError
from kstore.settings import Mode, Settings, load_settings
from tests.trees import in_processes

SOMEBODY = 65533


def load(folder: Path, environ: dict[str, str] | None = None, **arguments: Any) -> Settings:
    return load_settings(environ or {}, folder, **arguments)


def test_the_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == Settings(
        store=("/data/kstore",),
        cache_root=None,
        layout=None,
        mode=Mode.READ_WRITE,
        gpu=None,
        environment=None,
        components=tuple(load_table()),
        timeout=600.0,
        lease_ttl=60.0,
        stats=True,
    )


def test_an_argument_beats_the_environment_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "kstore.toml").write_text('store = "/file"\ngpu = "file"\nenvironment = "file"\n')
    environ = {"KSTORE_ROOT": "/environment", "KSTORE_GPU": "environment"}
    settings = load(tmp_path, environ, store="/argument")
    assert (settings.store, settings.gpu, settings.environment) == (("/argument",), "environment", "file")


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KSTORE_ROOT", "/store", "store", ("/store",)),
        ("KSTORE_CACHE_ROOT", "/local", "cache_root", "/local"),
        ("KSTORE_LAYOUT", "packed", "layout", Layout.PACKED),
        ("KSTORE_LAYOUT", "auto", "layout", None),
        ("KSTORE_MODE", "read", "mode", Mode.READ),
        ("KSTORE_GPU", "h100", "gpu", "h100"),
        ("KSTORE_ENVIRONMENT", "env", "environment", "env"),
        ("KSTORE_COMPONENTS", "triton,inductor", "components", ("triton", "inductor")),
        ("KSTORE_COMPONENTS", "triton inductor", "components", ("triton", "inductor")),
        ("KSTORE_TIMEOUT", "2.5", "timeout", 2.5),
        ("KSTORE_TIMEOUT", "0", "timeout", 0.0),
        ("KSTORE_LEASE_TTL", "90", "lease_ttl", 90.0),
        ("KSTORE_STATS", "false", "stats", False),
        ("KSTORE_STATS", "True", "stats", True),
        ("KSTORE_STATS", "0", "stats", False),
    ],
)
def test_every_setting_has_a_variable(tmp_path: Path, variable: str, text: str, name: str, value: object) -> None:
    assert getattr(load(tmp_path, {variable: text}), name) == value


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    assert load(tmp_path, {"KSTORE_ROOT": "", "KSTORE_CACHE_ROOT": "", "KSTORE_LAYOUT": ""}) == Settings()


def test_the_nearest_file_is_used(tmp_path: Path) -> None:
    deep = tmp_path / "a/b"
    deep.mkdir(parents=True)
    (tmp_path / "kstore.toml").write_text('gpu = "far"\nenvironment = "far"\n')
    assert load(deep).gpu == "far"
    (tmp_path / "a/pyproject.toml").write_text('[tool.kstore]\ngpu = "near"\n')
    assert (load(deep).gpu, load(deep).environment) == ("near", None)


def test_kstore_toml_comes_before_pyproject(tmp_path: Path) -> None:
    (tmp_path / "kstore.toml").write_text('gpu = "own"\n')
    (tmp_path / "pyproject.toml").write_text('[tool.kstore]\ngpu = "project"\n')
    assert load(tmp_path).gpu == "own"


def test_a_pyproject_without_a_section_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/pyproject.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "pyproject.toml").write_text('[tool.kstore]\ngpu = "outer"\n')
    assert load(tmp_path / "sub").gpu == "outer"


def test_paths_are_absolute_and_know_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = load(tmp_path, store="~/store", cache_root=Path("local"))
    assert (settings.store, settings.cache_root) == ((f"{tmp_path}/store",), f"{tmp_path}/local")


@pytest.mark.parametrize("file", ["kstore.toml", "pyproject.toml"])
def test_paths_in_a_file_count_from_its_folder(tmp_path: Path, file: str) -> None:
    section = "[tool.kstore]\n" if file == "pyproject.toml" else ""
    (tmp_path / file).write_text(f'{section}store = ["store", "../base"]\ncache_root = "local"\n')
    (tmp_path / "jobs").mkdir()
    settings = load(tmp_path / "jobs")
    assert (settings.store, settings.cache_root) == (
        (f"{tmp_path}/store", f"{tmp_path.parent}/base"),
        f"{tmp_path}/local",
    )
    assert load(tmp_path / "jobs", {"KSTORE_ROOT": "store"}).store == (f"{tmp_path}/jobs/store",)


@pytest.mark.parametrize("file", ["kstore.toml", "pyproject.toml"])
def test_an_unknown_setting_is_refused(tmp_path: Path, file: str) -> None:
    section = "[tool.kstore]\n" if file == "pyproject.toml" else ""
    (tmp_path / file).write_text(f'{section}stroe = "/x"\n')
    with pytest.raises(UsageError, match="stroe; there are store, cache_root, "):
        load(tmp_path)


@pytest.mark.parametrize("table", ["kstore", "tool.kstore"])
def test_a_table_in_kstore_toml_is_refused_with_what_is_right(tmp_path: Path, table: str) -> None:
    (tmp_path / "kstore.toml").write_text(f'[{table}]\nstore = "/x"\n')
    with pytest.raises(UsageError, match=r"kstore\.toml has no tables: the settings are its first lines"):
        load(tmp_path)


@pytest.mark.parametrize("value", ["10m", "600", "600s", 600, 600.0])
def test_durations_are_taken_as_options_take_them_and_as_numbers(tmp_path: Path, value: object) -> None:
    assert load(tmp_path, {"KSTORE_TIMEOUT": str(value)}).timeout == 600
    (tmp_path / "kstore.toml").write_text(f"timeout = {value!r}\nlease_ttl = {value!r}\n")
    assert (load(tmp_path).timeout, load(tmp_path).lease_ttl) == (600, 600)


@pytest.mark.parametrize(
    "arguments",
    [
        {"layout": "zip"},
        {"layout": 5},
        {"mode": "write"},
        {"components": "inductor,nothing"},
        {"components": 5},
        {"store": 5},
        {"cache_root": b"bytes"[0]},
        {"timeout": "ten minutes"},
        {"timeout": -1},
        {"timeout": "nan"},
        {"timeout": "inf"},
        {"timeout": 10**400},
        {"timeout": True},
        {"gpu": 5},
        {"environment": ["tag"]},
        {"components": ","},
        {"components": []},
        {"store": "\0"},
        {"cache_root": "/a\0"},
        {"cache_root": ""},
    ],
    ids=str,
)
def test_a_malformed_setting_is_refused_with_its_origin(tmp_path: Path, arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(UsageError, match=f"argument {name}"):
        load(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "choices"),
    [
        ({"layout": "zip"}, "one of auto, loose, packed"),
        ({"mode": "ro"}, "one of readwrite, read"),
        ({"timeout": "inf"}, "from 0 to 3153600000, a hundred years"),
        ({"store": 3}, "3 is not a valid value for store: it must be a path"),
        ({"cache_root": 3}, "3 is not a valid value for cache_root: it must be a path"),
        ({"cache_root": "/"}, "'/' is not a valid value for cache_root: it is the root of all folders"),
        ({"store": "~nobody1/x"}, "there is no user nobody1; a folder of that name is ./~nobody1/x"),
        ({"timeout": "ten minutes"}, "is not a valid value for timeout: it must be a duration such as 90s, 15m or 1h"),
        ({"timeout": []}, "it must be a duration such as 90s"),
        ({"components": ","}, "at least one of inductor, "),
        ({"components": "nothing"}, "nothing unknown; known are inductor, "),
        ({"components": 5}, "a list of names, of inductor, "),
        ({"stats": "maybe"}, "'maybe' is not a valid value for stats: it must be true or false"),
    ],
    ids=str,
)
def test_what_is_refused_says_what_could_be(tmp_path: Path, arguments: dict[str, Any], choices: str) -> None:
    with pytest.raises(UsageError, match=choices):
        load(tmp_path, **arguments)


def test_a_malformed_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="KSTORE_LAYOUT"):
        load(tmp_path, {"KSTORE_LAYOUT": "zip"})


def test_a_pyproject_that_is_not_toml_is_another_tools_trouble(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kstore]\nstore = [")
    assert load_settings({}, tmp_path) == Settings()


@pytest.mark.parametrize(
    "text",
    [
        "[tool.ruff]\nline-length = 120\n",
        '[project]\ndependencies = ["torch", "kstore"]\n',
        '[project]\ndependencies = ["kstore==1.0", "kstore >=1"]\n',
        "[dependency-groups]\nserving = ['kstore[torch] ~= 1.0']\n",
    ],
)
def test_a_pyproject_that_only_depends_on_kstore_is_not_parsed(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("a large one takes milliseconds"))
    (tmp_path / "pyproject.toml").write_text(text)
    assert load_settings({}, tmp_path) == Settings()


@pytest.mark.parametrize(
    "text",
    [
        '[ tool . "kstore" ]\ngpu = "x"',
        "[tool.'kstore']\ngpu = 'x'",
        "[tool]\nkstore = {gpu = 'x'}",
        "[tool]\n'kstore' = {gpu = 'x'}",
        "[tool]\nkstore.gpu = 'x'",
        "tool.kstore.gpu = 'x'",
        "tool = {kstore = {gpu = 'x'}}",
        'tool = {"kstore"\t.\tgpu = "x"}',
    ],
)
def test_a_section_counts_however_it_is_written(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert load_settings({}, tmp_path).gpu == "x"


@pytest.mark.parametrize("text", ["store = ", 'tool = "x"\nkstore = 1', "[tool]\nkstore = 5"])
def test_a_malformed_file_is_named(tmp_path: Path, text: str) -> None:
    name = "kstore.toml" if text == "store = " else "pyproject.toml"
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=name):
        load(tmp_path)


def test_settings_come_from_the_process_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTORE_GPU", "environment")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kstore.toml").write_text('environment = "file"\n')
    settings = load_settings()
    assert (settings.gpu, settings.environment) == ("environment", "file")
    assert os.environ["KSTORE_GPU"] == "environment"


@pytest.mark.parametrize("value", ["/a:/b", ("/a", "/b"), ["/a", "/b"]], ids=str)
def test_stores_are_listed_or_separated_by_colons(tmp_path: Path, value: object) -> None:
    assert load(tmp_path, store=value).store == ("/a", "/b")


def test_a_file_has_stores_as_a_list_or_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for text in ('["/a", "~/b"]', '"/a:~/b"'):
        (tmp_path / "kstore.toml").write_text(f"store = {text}\n")
        assert load(tmp_path).store == ("/a", "/home/me/b")


@pytest.mark.parametrize("value", [["/a:b"], "", [], "/a:", ":/a", "/a::/b", "/a:/a", ["/a", ""], [5]], ids=str)
def test_stores_that_cannot_be_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(UsageError, match="store"):
        load(tmp_path, store=value)


@pytest.mark.parametrize("name", ["store", "cache_root"])
@pytest.mark.parametrize("value", ["s3://bucket/kstore", "/a:s3://bucket/kstore", "file:///data/kstore"])
def test_a_url_is_no_folder(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{value}' is not a valid value for {name}: it is a URL"):
        load(tmp_path, **{name: value})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_may_not_be_looked_into_has_no_settings(tmp_path: Path) -> None:
    def load_as_somebody() -> tuple[str, ...]:
        os.chdir(tmp_path / "closed")
        os.seteuid(65534)
        return load_settings({}).store

    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed/kstore.toml").write_text('store = "/other"\n')
    assert in_processes(load_as_somebody, [()]) == [Settings().store]


def as_somebody(folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """The store, and what is logged, for an ordinary user in `folder` who asks twice."""
    lines: list[str] = []
    logger = logging.getLogger("kstore.settings")
    logger.addFilter(lambda record: bool(lines.append(record.getMessage())))
    os.seteuid(SOMEBODY)
    load_settings({}, folder)
    return load_settings({}, folder).store, lines


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of root's that everybody may look into."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("file", ["kstore.toml", "pyproject.toml"])
@pytest.mark.parametrize(("owner", "counts"), [(0, True), (SOMEBODY, True), (SOMEBODY + 1, False)])
def test_only_files_of_this_user_and_of_root_count(shared: Path, file: str, owner: int, counts: bool) -> None:
    path = shared / file
    path.write_text('[tool.kstore]\nstore = "/other"\n' if file == "pyproject.toml" else 'store = "/other"\n')
    os.chown(path, owner, owner)
    ((store, lines),) = in_processes(as_somebody, [(shared,)])

    why = f"it belongs to user {owner}, and not to this user, root or the owner of the working directory"
    assert store == (("/other",) if counts else Settings().store)
    assert [line.split(";")[0] for line in lines] == (
        [] if counts else [f"the settings in {path} are passed over: {why}"]
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_files_of_the_project_that_this_user_works_in_count_too(shared: Path) -> None:
    (shared / "kstore.toml").write_text('store = "/other"\n')
    for path in (shared, shared / "kstore.toml"):
        os.chown(path, SOMEBODY + 1, -1)
    ((store, lines),) = in_processes(as_somebody, [(shared,)])
    assert (store, lines) == (("/other",), [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_file_that_cannot_be_read_is_passed_over(shared: Path) -> None:
    path = shared / "kstore.toml"
    path.write_text('store = "/other"\n')
    path.chmod(0o600)
    ((store, lines),) = in_processes(as_somebody, [(shared,)])

    assert store == Settings().store
    assert [line.split(";")[0] for line in lines] == [
        f"the settings in {path} are passed over: it cannot be read (Permission denied)"
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_project_of_another_user_that_says_nothing_of_kstore_is_no_trouble(shared: Path) -> None:
    (shared / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    os.chown(shared / "pyproject.toml", SOMEBODY + 1, -1)
    ((store, lines),) = in_processes(as_somebody, [(shared,)])
    assert (store, lines) == (Settings().store, [])
