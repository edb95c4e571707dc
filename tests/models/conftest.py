"""What tests of models share."""

from __future__ import annotations

import pytest
import random_networks


@pytest.fixture(scope="module")
def quick_initial_values():
    """Networks begin with numbers at hand, since drawing them takes most of the time and all are replaced."""
    with random_networks.quick_initial_values():
        yield
