"""Lets a running state node take backfills that appear, while it goes on with its events."""

import asyncio
from collections.abc import Callable

from state.backfill_intake import BackfillIntake
from state.errors import StoreClosed
from state.partition_stores import PartitionStores


class BackfillTaker:
    """Looks for new backfills of the open partitions. At an opening, the stores have taken what was there."""

    def __init__(
        self,
        stores: PartitionStores,
        intake: BackfillIntake,
        interval_s: float,
        on_taken: Callable[[], None],
    ) -> None:
        """`on_taken` is called where users may be owed summaries since."""
        self._stores = stores
        self._intake = intake
        self._interval_s = interval_s
        self._on_taken = on_taken

    async def run(self) -> None:
        """Take backfills until cancelled. Raises StoreError."""
        while True:
            await asyncio.sleep(self._interval_s)
            for partition in self._stores.partitions():
                if await asyncio.to_thread(self._take, partition):
                    self._on_taken()

    def _take(self, partition: int) -> bool:
        try:
            return bool(self._intake.take_new(self._stores.get(partition)))
        except StoreClosed:
            return False  # given away meanwhile: its next owner takes it
