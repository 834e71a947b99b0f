"""`kstore completion`."""

from __future__ import annotations

import click

from kstore.cli.options import ERROR, Command, Invocation, output_options, pass_invocation


@click.command("completion", cls=Command, exit_codes=ERROR)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@output_options
@pass_invocation
def command(invocation: Invocation, shell: str) -> None:
    """Print the script that completes kstore's commands in a shell.

    \b
    echo 'eval "$(kstore completion bash)"' >> ~/.bashrc
    echo 'eval "$(kstore completion zsh)"' >> ~/.zshrc          # after compinit
    kstore completion fish > ~/.config/fish/completions/kstore.fish

    Commands, options and the KEYs of the store are completed; bash needs to be 4.4 or newer.
    """
    from click.shell_completion import get_completion_class

    from kstore.cli.program import COMPLETE, NAME, program

    found = get_completion_class(shell)
    assert found
    maker = found(program, {}, NAME, COMPLETE)
    script = maker.source_template % maker.source_vars()
    if invocation.output.json:
        invocation.output.document({"shell": shell, "script": script})
    else:
        invocation.output.exact(script.encode())
