"""The console script `kstore-b10-compile-cache`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kstore.cli.child import exit_code_of
from kstore.cli.launcher import become
from kstore.cli.program import run
from kstore.cli.streams import flush_streams, prepare_streams
from kstore.integrations.b10.deployment import Deployment
from kstore.integrations.b10.server import save_vllm_compile_cache
from kstore.integrations.b10.status import log, never_raises
from kstore.integrations.b10.variables import VLLM_VARIABLE

NAME = "kstore-b10-compile-cache"
HELP = f"""\
Usage: {NAME} [OPTIONS] -- CMD...
       {NAME} &

Restore what the replicas of a Baseten deployment have compiled, run the server CMD, and commit what it compiles,
while it runs and at its end. The exit code is the command's. OPTIONS are those of `kstore exec`.

Without a command: restore into the default cache folders of a vLLM server that is started by somebody else, wait until
it is ready, and save. Nothing makes that server wait for the restore.

Variables: BASETEN_FS_ENABLED, B10FS_CACHE_DIR, VLLM_CACHE_ROOT; and, without a command, B10_TRANSFER_VLLM_URL,
B10_TRANSFER_TIMEOUT_S, B10_TRANSFER_INTERVAL_S, B10_TRANSFER_CLI_LOGLEVEL.

Exit codes without a command:
  0  done, or the log says why not
  1  a variable is malformed
  2  usage, or the server was not ready in time
"""
USAGE = 2


def main() -> int:
    """Run it; returns the exit code."""
    prepare_streams()
    try:
        code = _main(sys.argv[1:])
    except BrokenPipeError:
        code = 1
    return flush_streams(code)


def _main(arguments: Sequence[str]) -> int:
    if "--" in arguments:
        at = arguments.index("--")
        return run_server(arguments[:at], arguments[at + 1 :])
    if arguments in (["-h"], ["--help"]):
        print(HELP, end="")
        return 0
    if arguments:
        print(f"{NAME}: put the server's command after '--' (see `{NAME} --help`)", file=sys.stderr)
        return USAGE
    save_vllm_compile_cache()
    return 0


def run_server(options: Sequence[str], program: Sequence[str]) -> int:
    """`kstore exec` with the deployment's store and key; if there is no volume, the program alone."""
    if {"-h", "--help"}.intersection(options) or not program:
        print(HELP, end="", file=sys.stdout if program else sys.stderr)
        return 0 if program else USAGE
    deployment = _prepare()
    if deployment is None:
        return _replace_us(program)
    # Where the server keeps its cache without us: its contents were built under that path.
    os.environ[VLLM_VARIABLE] = deployment.environ[VLLM_VARIABLE]
    stores = ":".join(deployment.store.settings.store)
    return run(["exec", deployment.key, "--store", stores, *options, "--", *program])


def _nothing(_: str) -> Deployment | None:
    return None


@never_raises("the compile cache of this deployment", _nothing)
def _prepare() -> Deployment | None:
    """The deployment, once what b10-transfer left is imported into its store."""
    deployment = Deployment.of_vllm()
    deployment.variables.check_enabled()
    deployment.prepare()
    return deployment


def _replace_us(program: Sequence[str]) -> int:
    """Run the program in our place."""
    sys.stdout.flush()
    number = become(program, os.environ)
    error = OSError(number, os.strerror(number))
    log.error("kstore: cannot run %r: %s", program[0], error.strerror)
    return exit_code_of(error)
