"""Four host devices for the sharding tests, and Hypothesis profiles.

The same examples every time, no database, and no deadline: compiling takes as long as it takes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest
from hypothesis import HealthCheck, Phase, settings

jax.config.update("jax_num_cpu_devices", 4)

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}

# No shrinking: every smaller example is another compilation, and what a failure prints says enough to go on.
_PHASES = (Phase.explicit, Phase.generate)
settings.register_profile("default", derandomize=True, database=None, max_examples=25, phases=_PHASES, **_COMMON)
# Look for new failures: HYPOTHESIS_PROFILE=explore pytest tests/contract
settings.register_profile("explore", max_examples=500, print_blob=True, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture
def unoptimized() -> Iterator[None]:
    """XLA compiles quickly instead of well: for tests of rules and structure, where compiling is most of the time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
