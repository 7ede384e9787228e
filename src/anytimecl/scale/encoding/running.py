"""Runs a job in this process, in several processes, or in actors on Ray."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from anytimecl.errors import AnytimeError
from anytimecl.scale.encoding.blocks import BlockEncoder, Done
from anytimecl.scale.encoding.job import BlockPlace, EncodingJob, load
from anytimecl.scale.leaf_host import connect_ray, import_ray

AHEAD = 2  # queued blocks for each process, so that none is idle
PATIENT = {"OMP_WAIT_POLICY": "passive"}  # waiting threads leave the core to other processes
PIECES = 20  # tasks for each actor, so that Ray Data can balance the load


def missing(job: EncodingJob) -> list[BlockPlace]:
    """The blocks that are not encoded yet."""
    return [place for place in job.places() if not job.file(place.number).exists()]


def here(
    job: EncodingJob, places: Sequence[BlockPlace], *, device: str = "cpu", batch: int = 1
) -> Iterator[Done]:
    """Encode blocks in this process."""
    encoder = BlockEncoder(job, device=device, batch=batch)
    for place in places:
        yield encoder(place)


def in_processes(
    job: EncodingJob,
    places: Sequence[BlockPlace],
    workers: int,
    *,
    device: str = "cpu",
    batch: int = 1,
) -> Iterator[Done]:
    """Encode blocks in processes of this machine, each with a model and one thread."""
    left = iter(places)
    told = str(job.folder), device, batch, torch.get_num_threads()
    spawn = multiprocessing.get_context("spawn")
    with _environment(PATIENT), ProcessPoolExecutor(workers, spawn, _begin, told) as pool:
        running: set[Future[Done]] = set()
        try:
            while True:
                while len(running) < AHEAD * workers and (place := next(left, None)) is not None:
                    running.add(pool.submit(_encode, place))
                if not running:
                    return
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        except BrokenProcessPool as error:
            raise AnytimeError(
                "A process that encodes has ended, for want of memory perhaps. What is done is "
                "kept: the same command goes on, with fewer --workers if need be."
            ) from error
        finally:
            for future in running:
                future.cancel()


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for new processes; the user's values have precedence."""
    own = {name: value for name, value in more.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            os.environ.pop(name, None)


_encoder: BlockEncoder | None = None


def _begin(folder: str, device: str, batch: int, threads: int) -> None:
    """Initialise a process of the pool.

    Its trunk has one thread, since the processes share the cores; tokens do not depend on that. A
    codec's sums do, so it has as many `threads` as `learn` would have. They are `PATIENT`, since
    busy-waiting would take cores from other processes.
    """
    global _encoder
    torch.set_num_threads(1)
    _encoder = BlockEncoder(load(Path(folder)), device=device, batch=batch)
    torch.set_num_threads(threads)


def _encode(place: BlockPlace) -> Done:
    assert _encoder is not None
    return _encoder(place)


class RayEncoder:
    """The Ray Data actor."""

    def __init__(self, folder: str, device: str, batch: int, threads: int) -> None:
        _begin(folder, device, batch, threads)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Encode blocks; places and results are columns."""
        places = zip(*(rows[name].tolist() for name in BlockPlace._fields), strict=True)
        done = [_encode(BlockPlace(*place)) for place in places]
        return {name: [getattr(one, name) for one in done] for name in Done._fields}


def on_ray(
    job: EncodingJob,
    places: Sequence[BlockPlace],
    workers: int,
    *,
    address: str | None = None,
    device: str = "cpu",
    batch: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
) -> Iterator[Done]:
    """Encode in Ray Data actors with `cpus` cores and `gpus` GPUs each; all need the folder."""
    if not places:  # only the end of the job is left
        return
    connect_ray(import_ray(), address)
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = False
    pieces = min(len(places), PIECES * workers)
    rows = ray.data.from_items([place._asdict() for place in places], override_num_blocks=pieces)
    done = rows.map_batches(
        RayEncoder,
        fn_constructor_args=(str(job.folder.resolve()), device, batch, torch.get_num_threads()),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=cpus,
        num_gpus=gpus,
        runtime_env={"env_vars": PATIENT},
    )
    for row in done.iter_rows():
        yield Done(**row)
