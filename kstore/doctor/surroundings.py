"""What else decides hits: the host's compiler, and environment variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kstore.doctor.check import Check, bad, ok, warning
from kstore.doctor.components import check_components
from kstore.doctor.published import Newest
from kstore.environment import Host, HostUnknown, detect_host, is_cpu
from kstore.environment.influences import (
    FOR_THE_CPU,
    OF_THREADS,
    have_same_keys,
    influence,
    influences,
    processors,
    switched_off,
    threads,
)
from kstore.errors import WaitTimeout
from kstore.published.manifest import Manifest
from kstore.settings import misspelt
from kstore.store import Store

_FREEZING = "TORCHINDUCTOR_FREEZING"
_MOST_PROCESSORS = 1 << 20
"""The most that is believed: if a manifest gives more for its builder, it is not a number of processors."""
_MOST = 20
"""Variables that are named: a manifest may hold any number."""


def check_surroundings(store: Store, key: str, newest: Newest | None) -> Iterator[Check]:
    """Check the host, the component variables, and the variables that change keys."""
    manifest = newest.snapshot.manifest if newest and newest.snapshot and newest.is_own else None
    environ = store.environ
    yield from _check_host(store, manifest)
    yield from check_components(store, key, newest)
    yield from _check_names(environ)
    yield from _check_switches(environ)
    yield from _check_influences(store, manifest)


def _check_host(store: Store, manifest: Manifest | None) -> Iterator[Check]:
    try:
        host = detect_host(store.environ)
    except (WaitTimeout, HostUnknown) as error:
        found, _, advice = str(error).partition("; ")
        yield bad("compiler", found, advice)
        return
    yield _check_compiler(store, host)
    if manifest:
        yield _check_bound(manifest, host)


def _check_compiler(store: Store, host: Host) -> Check:
    if host.facts["compiler"] != "none":
        return ok("compiler", host.facts["compiler"])
    if is_cpu(store.gpu):
        found = "there is none, and torch needs one even if every object is restored"
        return bad("compiler", found, "install g++, or set CXX")
    return warning("compiler", "there is none", "Triton needs one where its launcher is not restored: install gcc")


def _check_bound(manifest: Manifest, host: Host) -> Check:
    bound = {fingerprint: len(files) for fingerprint, files in manifest.hosts.items()}
    if not bound:
        return ok("host", f"{host.fingerprint}; nothing that is published is bound to a host")
    if host.fingerprint in bound:
        return ok("host", f"{host.fingerprint}: {bound[host.fingerprint]} C++ objects fit it")
    theirs = manifest.meta.get("host")
    facts = theirs if isinstance(theirs, Mapping) else {}
    differing = sorted(name for name, value in host.facts.items() if facts.get(name, value) != value)
    return warning(
        "host",
        f"{sum(bound.values())} C++ objects were built for other hosts ({', '.join(differing) or 'unknown'} differ)",
        "they are compiled anew once, and then kept for this kind of host too",
    )


def _check_names(environ: Mapping[str, str]) -> Iterator[Check]:
    for name, meant in misspelt(environ).items():
        yield warning(name, "it is not a kstore setting, and nothing reads it", f"if {meant} is meant, rename it")


def _check_switches(environ: Mapping[str, str]) -> Iterator[Check]:
    for name in switched_off(environ):
        yield bad(name, f"it is {environ[name] or 'empty'}: the cache is not consulted", "unset it")
    if environ.get(_FREEZING) == "1":
        yield warning(_FREEZING, "it is 1: torch caches no graph whose parameters it freezes", "unset it to get hits")


def _check_influences(store: Store, manifest: Manifest | None) -> Iterator[Check]:
    """Check the variables that differ from the builder's; if the builder's are not known, all that are set."""
    ours = influences(store.environ)
    theirs = manifest.meta.get("variables") if manifest else None
    if not isinstance(theirs, Mapping):
        for name, value in ours.items():
            advice = f"it must have been the same where it was compiled: it changes the keys of {influence(name)}"
            yield warning(name, f"it is {_set(value)}", advice)
        return
    built = influences({name: str(value) for name, value in theirs.items()})
    names = [n for n in sorted(ours.keys() | built.keys()) if not have_same_keys(n, built.get(n), ours.get(n))]
    there = manifest.meta.get("processors") if manifest else None
    if isinstance(there, int) and 0 < there < _MOST_PROCESSORS:
        said, names = [n for n in names if n in OF_THREADS], [n for n in names if n not in OF_THREADS]
        if said or is_cpu(store.gpu):  # Hosts with the same GPU may well have different processors.
            yield from _check_threads(store, threads(built, there), threads(ours, processors()))
    for name in names[:_MOST]:
        found = f"{_set(built.get(name))} where it was compiled, {_set(ours.get(name))} here"
        yield _judge(store, name)(name, found, f"make them equal: it changes the keys of {influence(name)}")
    if not names:
        yield ok("key variables", ", ".join(ours) or "none is set")


def _check_threads(store: Store, there: int, here: int) -> Iterator[Check]:
    """Check how many threads torch has, whatever determines it."""
    if there != here:
        name, found = OF_THREADS[1], f"torch had {there} where it was compiled, and has {here} here"
        advice = f"give it {there}, with as many processors or with {name}: it changes the keys of {influence(name)}"
        yield _judge(store, name)("CPU threads", found, advice)


def _judge(store: Store, name: str) -> Callable[[str, str, str], Check]:
    return warning if name in FOR_THE_CPU and not is_cpu(store.gpu) else bad


def _set(value: str | None) -> str:
    return "not set" if value is None else value or "empty"
