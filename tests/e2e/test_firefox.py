"""The page in the other browser."""

from __future__ import annotations

import pytest
from tests.e2e.conftest import Server
from tests.e2e.firefox import firefox

pytestmark = pytest.mark.e2e


def test_teach_undo_and_look_through_in_firefox(tiny_server: Server) -> None:
    with firefox() as browser:
        assert browser.about["browserName"] == "firefox"
        browser.open(tiny_server.url)
        browser.wait("document.querySelector('#link.live')?.textContent")
        browser.wait("!document.getElementById('welcome').hidden")
        browser.wait("(document.querySelector('#samples button').click(), true)")
        answered = "document.querySelector('#answer[data-state=answered]') && "
        label = browser.wait(f"{answered} document.querySelector('#bars button').dataset.label")
        browser.wait("(document.querySelector('#bars button').click(), true)")
        words = browser.wait(
            "!document.getElementById('undo').hidden && "
            "document.getElementById('notice-text').textContent"
        )
        assert f"Learned as “{label}”" in words
        browser.wait("document.querySelector('#bars button.taught')?.dataset.label")
        browser.wait("(location.hash = '#examples', true)")
        browser.wait("document.querySelector('#gallery li img')?.complete")
        browser.wait("(document.getElementById('undo').click(), true)")
        browser.wait("document.getElementById('notice-text').textContent === 'Undone.'")
        browser.wait("document.querySelectorAll('#gallery li').length === 0")
