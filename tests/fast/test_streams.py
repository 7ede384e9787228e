"""Predictions on a GPU run beside the learning, from weights that stand still."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.fast.learners import fast_learner
from tests.fast.test_cuda_graph import model_on, on_gpu
from tests.helpers import FAST, LABELS, lessons, model, picture, settings
from tests.test_learner import batch_of

from anytimecl.classifier import AnytimeClassifier
from anytimecl.fast import CudaStreams

DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_a_prediction_belongs_to_one_moment(device: str) -> None:
    """Each one that was made meanwhile is what some number of lessons had taught."""
    chosen = settings(learner=dataclasses.replace(FAST, lr=1e-3))
    asked = picture(50)
    alone, crowd = (
        AnytimeClassifier.open(model=model_on(device), settings=chosen) for _ in range(2)
    )
    moments = []
    for image, label in lessons(30):
        alone.learn_one(image, label)
        moments.append(alone.predict_proba(asked, LABELS))
    apart = min(np.abs(a - b).max() for a, b in pairwise(moments))
    crowd.learn_one(*next(iter(lessons(1))))
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(crowd.predict_proba, asked, LABELS) for _ in range(60)]
        for image, label in lessons(29, start=1):
            crowd.learn_one(image, label)
            made.append(pool.submit(crowd.predict_proba, asked, LABELS))
        for each in made:
            nearest = min(np.abs(each.result() - moment).max() for moment in moments)
            assert nearest < max(apart / 2, 1e-5)
    np.testing.assert_allclose(crowd.predict_proba(asked, LABELS), moments[-1], atol=1e-5)


@on_gpu
def test_no_update_waits_for_a_prediction() -> None:
    """A long prediction is in its stream, and a step is over before it."""
    backbone = model_on("cuda")
    learner = fast_learner(backbone, device="cuda")
    made = batch_of(backbone, 0, device="cuda", dtype=torch.float32)
    batch = dataclasses.replace(made, target=made.target.cuda(), rows=made.rows.cuda())
    learner.apply(learner.look_ahead(batch))
    streams = CudaStreams(backbone.device)
    with streams.predicting():
        still = streams.still(learner, 0)
        torch.cuda._sleep(2_000_000_000)  # cycles: a second, about
        still.tuned_logits(batch.tokens, batch.vectors, batch.rows)
        over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        over.record()
    learner.apply(learner.look_ahead(batch))
    torch.cuda.current_stream().synchronize()
    assert not over.query()
    assert streams.still(learner, 0) is learner  # in its own stream
    with streams.predicting():
        assert streams.still(learner, 0) is still
        assert streams.still(learner, 1) not in (still, learner)


def test_on_a_cpu_it_is_the_learner_itself() -> None:
    learner = fast_learner(model())
    with CudaStreams(torch.device("cpu")).predicting():
        assert CudaStreams(torch.device("cpu")).still(learner, 3) is learner
