"""`anytimecl scale`: a tree of learners on a Ray cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common

if TYPE_CHECKING:
    from anytimecl.scale.leaves import Health

app = typer.Typer(name="scale", no_args_is_help=True, help="Learn on more than one machine.")

Address = Annotated[
    str | None,
    typer.Option(help="Of the Ray cluster, as `ray start` prints it; unless given: one made here."),
]


def register(main: typer.Typer) -> None:
    """Add `anytimecl scale` to the program."""
    main.add_typer(app)


@app.command("up")
def scale_up(
    memory: _common.MemoryOption,
    address: Address = None,
    model: Annotated[str, typer.Option(help="A model by name or folder.")] = "embedded",
    capacity: Annotated[
        int | None,
        typer.Option(min=2, help="Examples that a leaf holds before it becomes two."),
    ] = 10_000,
    near: Annotated[int, typer.Option(min=1, help="Leaves that are asked about an image.")] = 1,
    cpus: Annotated[float, typer.Option(min=0.01, help="That each leaf asks of its node.")] = 1.0,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    once: Annotated[bool, typer.Option(help="Start it, say how it is, and leave it up.")] = False,
) -> None:
    """Start a tree on a cluster and watch its leaves; Ctrl-C ends it, and nothing is lost.

    The memory's folder must be one that every node can reach. Other programs on the cluster use
    the tree through anytimecl.scale.router.connect().
    """
    from anytimecl.scale.router import up

    tree = up(memory, address=address, model=model, capacity=capacity, near=near, cpus=cpus)
    typer.echo(f"{len(tree):,} examples of {len(tree.labels):,} labels")
    told = ""
    try:
        while True:
            lines = "\n".join(_line(each) for each in tree.health())
            if lines != told:
                typer.echo(lines)
                told = lines
            if once:
                return
            time.sleep(every)
    except KeyboardInterrupt:
        tree.down()
        typer.echo("Stopped. Everything that was answered is stored.")


@app.command("status")
def status(address: Address = "auto") -> None:
    """Say how the leaves of the tree on a cluster are."""
    from anytimecl.scale.router import connect

    tree = connect(address)
    typer.echo(f"{len(tree):,} examples of {len(tree.labels):,} labels")
    for each in tree.health():
        typer.echo(_line(each))


@app.command("down")
def down(address: Address = "auto") -> None:
    """End the tree on a cluster; its folder stays, with all that it learned."""
    from anytimecl.scale.router import connect

    connect(address).down()
    typer.echo("Stopped. Everything that was answered is stored.")


def _line(each: Health) -> str:
    state = "up" if each.alive else "out of reach"
    again = f", restarted {each.restarts} times" if each.restarts else ""
    return f"leaf {each.leaf}: {state} on {each.node[:8]}, {each.pending} waiting{again}"
