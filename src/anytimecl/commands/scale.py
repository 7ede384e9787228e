"""`anytimecl scale`: a tree of learners on a Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anytimecl.commands import _common, _screen

if TYPE_CHECKING:
    from anytimecl.scale.leaves import Health

Durability = Literal["process", "full"]
CAPACITY = 1_000_000  # examples of a leaf: splits cost accuracy, so leaves are large
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
    ] = CAPACITY,
    near: Annotated[int, typer.Option(min=1, help="Leaves that are asked about an image.")] = 1,
    cpus: Annotated[
        float, typer.Option(min=0.01, help="That each process asks of its node.")
    ] = 1.0,
    durability: Annotated[
        Durability,
        typer.Option(help="What a learned example survives: the process, or a power cut (full)."),
    ] = "full",
    copy_to: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Folder on another disk, or an address that fsspec knows, where every example "
            'is written a second time before it is acknowledged; "none" ends that.',
        ),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Go on without leaves that are missing or hold less."),
    ] = False,
    encoders: Annotated[
        int, typer.Option(min=0, help="Processes that encode; 0: the router does it.")
    ] = 1,
    rebalance: Annotated[
        bool, typer.Option(help="Move leaves to nodes that have fewer, as nodes join.")
    ] = True,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 10.0,
    once: Annotated[bool, typer.Option(help="Start it, say how it is, and leave it up.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="If a tree runs there already, watch that one: for whatever starts this command "
            "again whenever it ends, such as systemd.",
        ),
    ] = False,
) -> None:
    """Start a tree on a cluster and watch its leaves; Ctrl-C stops it without losing anything.

    Every node must be able to access the memory's folder. Other programs on the cluster use the
    tree through anytimecl.scale.router.connect().
    """
    from anytimecl.scale import router

    try:
        tree = router.up(
            memory,
            address=address,
            model=model,
            capacity=capacity,
            near=near,
            cpus=cpus,
            durability=durability,
            accept_loss=accept_loss,
            copy_to=copy_to,
            encoders=encoders,
        )
    except router.AlreadyUp:
        if not watch:
            raise
        tree = router.connect(address)
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
            for leaf, node in tree.rebalance().items() if rebalance else ():
                typer.echo(f"leaf {leaf} moved to {node[:8]}")
            time.sleep(every)
    except KeyboardInterrupt:
        tree.down()
        typer.echo("Stopped. Everything that was answered is stored.")


@app.command("status")
def status(address: Address = "auto") -> None:
    """Show the state of each leaf of the tree on a cluster."""
    from anytimecl.scale.router import connect

    tree = connect(address)
    typer.echo(f"{len(tree):,} examples of {len(tree.labels):,} labels")
    for each in tree.health():
        typer.echo(_line(each))


@app.command("down")
def down(address: Address = "auto") -> None:
    """Stop the tree on a cluster; its folder stays, with everything it learned."""
    from anytimecl.scale.router import connect

    connect(address).down()
    typer.echo("Stopped. Everything that was answered is stored.")


@app.command("serve")
def serve_predictions(
    memory: _common.MemoryOption,
    address: Address = None,
    host: Annotated[str, typer.Option(help="Address to listen on, on every node.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="As `anytimecl serve` takes them; every node needs the file. Needed off "
            "127.0.0.1.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Unless given: the memory's own.")
    ] = None,
    encoders: Annotated[
        str, typer.Option(help="Replicas that encode: 2, or 1:8 for as many as there is work for.")
    ] = "1:4",
    answerers: Annotated[str, typer.Option(help="Replicas that answer, likewise.")] = "1:4",
    threads: Annotated[int, typer.Option(min=1, help="Cores of each replica.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each encoder.")] = 0,
    every: Annotated[
        float, typer.Option(min=0.1, help="Seconds until what is learned meanwhile counts.")
    ] = 10.0,
    once: Annotated[bool, typer.Option(help="Start it, and leave it up.")] = False,
) -> None:
    """Serve a memory's predictions from any number of replicas on a cluster; Ctrl-C stops it.

    The HTTP API is that of `anytimecl serve --read-only`. Another process may keep learning in the
    memory. Every node must be able to access its folder.
    """
    from anytimecl.scale.serving.on_serve import serve_memory, stop_serving

    serve_memory(
        memory,
        address=address,
        host=host,
        port=port,
        tokens=tokens,
        model=model,
        encoders=encoders,
        answerers=answerers,
        encoder_cpus=threads,
        encoder_gpus=gpus,
        answerer_cpus=threads,
        threads=threads,
        every=every,
    )
    typer.echo(f"{memory} is served on http://{host}:{port}, on every node.")
    if once:
        return
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        stop_serving()
        typer.echo("Stopped.")


Tree = Annotated[
    Path | None,
    typer.Option("--memory", metavar="M", help="Folder of a tree that is on this machine."),
]
Running = Annotated[
    str | None, typer.Option("--address", help="Of a cluster: the tree that runs there.")
]


def _one_of(memory: Path | None, address: str | None) -> None:
    if (memory is None) == (address is None):
        raise typer.BadParameter("Say which tree: --memory M here, or --address of a cluster.")


@app.command("verify")
def verify(memory: Tree = None, address: Running = None) -> None:
    """Read and check every leaf of a tree, while it is in use.

    Ends with 1 if anything is wrong.
    """
    from anytimecl.scale.router import connect
    from anytimecl.scale.snapshots import verify_tree

    _one_of(memory, address)
    if memory is None:
        report = connect(address).verify()
    else:
        with _screen.progress("checking") as advance:
            report = verify_tree(memory, advance)
    typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command("snapshot")
def take_snapshot(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder.")],
    memory: Tree = None,
    address: Running = None,
) -> None:
    """Copy a whole tree while it is in use; the copy is a tree, too.

    For a tree that runs on a cluster, every node must be able to access the new folder.
    """
    from anytimecl.scale.router import connect
    from anytimecl.scale.snapshots import snapshot

    _one_of(memory, address)
    leaves = connect(address).snapshot(to) if memory is None else snapshot(memory, to)
    where = address or memory
    typer.echo(f"Copied {_screen.counted(leaves, 'leaf', 'leaves')} of {where} to {to}.")


@app.command("restore")
def bring_back(
    copy: Annotated[str, typer.Argument(help="A snapshot, or where --copy-to wrote lessons.")],
    memory: Annotated[Path, typer.Option("--memory", metavar="M", help="A new folder.")],
    model: Annotated[str, typer.Option(help="A model by name or folder.")] = "embedded",
    capacity: Annotated[
        int, typer.Option(min=2, help="Examples that a leaf holds before it becomes two.")
    ] = CAPACITY,
) -> None:
    """Restore a tree from a snapshot, or learn it again from its second copy.

    The latter resumes if it was interrupted.
    """
    from anytimecl.scale.snapshots import restore
    from anytimecl.scale.tree_folder import FILE

    if "://" not in copy and (Path(copy) / FILE).exists():
        leaves = restore(Path(copy), memory)
        typer.echo(f"Copied {_screen.counted(leaves, 'leaf', 'leaves')} of {copy} to {memory}.")
        return
    _learn_again(copy, memory, model, capacity)


def _learn_again(copy: str, memory: Path, model: str, capacity: int) -> None:
    from anytimecl.errors import KeyUsedError
    from anytimecl.scale.second_copy import lessons_in, meta_of
    from anytimecl.scale.tree import TreeClassifier
    from anytimecl.settings import Settings

    settings = Settings.from_json(meta_of(copy)["settings"])
    count = known = 0
    with (
        TreeClassifier.open(memory, model=model, settings=settings, capacity=capacity) as tree,
        _screen.progress("learn") as advance,
    ):
        for count, lesson in enumerate(lessons_in(copy), 1):
            try:
                tree.learn_lesson(lesson)
            except KeyUsedError:  # already here, with a newer label
                known += 1
            advance(count, count, "")
        examples = len(tree)
    typer.echo(
        f"Read {_screen.counted(count, 'lesson')} of {copy}; {memory} holds "
        f"{_screen.counted(examples, 'example')}."
        + (f" {known:,} were here already with another label." if known else "")
    )


def _line(each: Health) -> str:
    state = "up" if each.alive else "out of reach"
    again = f", restarted {each.restarts} times" if each.restarts else ""
    return f"leaf {each.leaf}: {state} on {each.node[:8]}, {each.pending} waiting{again}"
