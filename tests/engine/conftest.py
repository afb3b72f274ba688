from collections.abc import AsyncIterator

import pytest

from ..threads import workers_end
from .bench import Bench


@pytest.fixture
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """Its parameter is the pool's courtesy, or its limits."""
    given = getattr(request, "param", None)
    async with workers_end():
        bench = Bench(**given) if isinstance(given, dict) else Bench(given)
        yield bench
        bench.pool.close()
        bench.pool.lane.close()
        assert await bench.pool.roster.join(10)
