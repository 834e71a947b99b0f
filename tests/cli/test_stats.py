from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families as parse

from kstore.stats.record import finish
from kstore.words import duration, size
from tests.cli.commandline import ENVIRONMENT, GPU, Cli


def restore(cli: Cli, key: str, root: str = "other") -> None:
    assert cli("restore", key, "--cache-root", str(cli.folder / root)).code == 0
    finish(10)


def test_hits_and_misses_are_shown_by_key(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    restore(cli, "my/v1")
    restore(cli, "my/v1")
    restore(cli, "my/v2")
    result = cli("stats")

    assert result.code == 0
    assert "2 hits, 1 miss, 0 seeded; 66.7 % hits" in result.out
    rows = {line.split()[0]: line.split() for line in result.out.splitlines() if line.startswith("my/")}
    assert rows["my/v1"][1:5] == [GPU, "2", "0", "1"]
    assert rows["my/v2"][1:5] == [GPU, "0", "1", "0"]


def test_a_key_counts_where_something_of_it_is_there(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    restore(cli, "my/v3")
    assert cli("restore", "my/v1", "--gpu", "another", "--cache-root", str(cli.folder / "another")).code == 0
    finish(10)
    assert "keys          2, of 1 GPU\n" in cli("stats").out

    cli("forget", "my/v2")
    assert "keys          1, of 1 GPU\n" in cli("stats").out
    cli("gc", "--offline")
    assert "keys          1, of 1 GPU\n" in cli("stats").out


def test_statistics_of_one_key(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    cli.publish("my/v2", "two")
    restore(cli, "my/v3")
    result = cli("stats", "my/v1")

    assert "my/v1" in result.out and "my/v2" not in result.out and "my/v3" not in result.out
    assert "none counted" in result.out


def test_json_has_all_of_it(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    restore(cli, "my/v1")
    content = cli("stats", "--json").json

    (row,) = content["keys"]
    assert (row["key"], row["gpu"], row["hits"], row["misses"], row["generations"]) == ("my/v1", GPU, 1, 0, 1)
    assert row["artifacts"] == row["unique"] == len("one") + len("two")
    saved = row["deduplicated"] + row["elsewhere"] + row["compressed"]
    assert row["stored"] == row["artifacts"] + row["manifests"] - saved
    assert row["restores"]["slowest"][0]["files"] == 2
    assert row["commits"]["timed"] == row["commits"]["published"] == 1
    assert row["commits"]["uploaded"] == row["stored"]
    assert content["total"]["hits"] == 1


def test_people_see_the_same_figures(cli: Cli) -> None:
    cli.publish("my/v1", "one", "two")
    cli.publish("my/v2", "two")
    restore(cli, "my/v1")
    total = cli("stats", "--json").json["total"]
    facts = dict(line.split(maxsplit=1) for line in cli("stats").out.replace("files' size", "files").splitlines()[:11])

    assert (facts["store"], facts["generations"]) == (str(cli.store), "2")
    assert facts["files"] == "9 B in all of these generations"
    assert (facts["deduplicated"], facts["manifests"]) == ("-3 B", f"+{size(total['manifests'])}")
    assert (facts["compressed"], facts["stored"]) == ("0 B", size(total["stored"]))
    assert total["stored"] == total["artifacts"] + total["manifests"] - 3
    took = total["restores"]["timings"]["restored"]["seconds"]
    assert f"restore time  {duration(took)} on average, {duration(took)} to {duration(took)}\n" in cli("stats").out
    commits = total["commits"]
    assert f"commit time   {duration(commits['seconds'] / 2)} on average, " in cli("stats").out
    assert f"{duration(commits['most'])} at most; {size(commits['uploaded'])} uploaded\n" in cli("stats").out


def test_a_command_that_is_run_is_counted(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    assert cli.process("exec", "my/v1", "--", "true").code == 0

    assert cli("stats", "my/v1", "--json").json["total"]["hits"] == 1


def test_prometheus_can_read_it(cli: Cli) -> None:
    cli.publish("my/v1", "one")
    restore(cli, "my/v1")
    families = {family.name: family for family in parse(cli("stats", "--prometheus").out)}

    hits = [sample.value for sample in families["kstore_restores"].samples if sample.labels["result"] == "hit"]
    assert hits == [1]
    assert "kstore_store_stored_bytes" in families


def test_prometheus_and_json_exclude_each_other(cli: Cli) -> None:
    assert cli("stats", "--prometheus", "--json").code == 2


def test_a_key_that_nobody_knows_is_a_miss(cli: Cli) -> None:
    cli.publish("my/v1")

    assert cli("stats", "your/v1").code == 3


def test_an_empty_store_has_no_figures(cli: Cli) -> None:
    cli("init")
    result = cli("stats")

    assert result.code == 0
    assert "none counted" in result.out
    assert "deduplicated  0 B\n" in result.out and "manifests     0 B\n" in result.out


def test_what_cannot_be_read_is_named(cli: Cli) -> None:
    cli.publish("my/v1")
    ref = cli.store / f"refs/{GPU}/my/v1/@{ENVIRONMENT}/1"
    ref.chmod(0o644)
    ref.write_text("damaged")
    result = cli("stats")

    assert result.code == 4
    assert "generation 1 of my/v1" in result.err
