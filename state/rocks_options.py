"""The options of every RocksDB database, and the memory that all databases of a process share."""

import os

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    WriteBufferManager,
)

from state.rocks_config import RocksConfig

_SHARE_OF_ONE = 8
_MAX_BACKGROUND_JOBS = 8


class RocksMemory:
    """What all databases of a process share: one block cache, and one budget for their memtables."""

    def __init__(self, config: RocksConfig) -> None:
        """Nothing is allocated before it is used."""
        self.config = config
        self.cache = Cache(config.block_cache_bytes)
        self.write_buffers = WriteBufferManager(config.memtable_bytes, allow_stall=False)


def database_options(memory: RocksMemory) -> Options:
    """Options of a database and of each of its column families, which RocksDB does not keep from open to open."""
    config = memory.config
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(_table_options(memory))
    # Values are compressed by their own codecs where that pays: fast LZ4 is enough.
    options.set_compression_type(DBCompressionType.lz4())
    _bound_memory(options, memory)
    _bound_files(options, config)
    # Families are flushed together, or the small one would keep old log files alive.
    options.set_atomic_flush(True)
    # Threads belong to the process, not to a database: one for flushes and one for compactions are few on large machines.
    num_cores = len(os.sched_getaffinity(0))
    options.set_max_background_jobs(max(2, min(num_cores, _MAX_BACKGROUND_JOBS)))
    options.set_paranoid_checks(True)
    # A log that ends within a record is what a crash leaves; damage before its end is somebody's decision.
    options.set_wal_recovery_mode(
        DBRecoveryMode.point_in_time()
        if config.accept_log_damage
        else DBRecoveryMode.tolerate_corrupted_tail_records()
    )
    return options


def _bound_memory(options: Options, memory: RocksMemory) -> None:
    budget = memory.config.memtable_bytes
    options.set_write_buffer_manager(memory.write_buffers)
    # What an idle database may hold of the budget: the manager flushes only those that are written.
    options.set_write_buffer_size(budget // _SHARE_OF_ONE)
    # A memtable takes a whole arena block with its first key; at 1 MiB, 64 databases fill the budget with air.
    options.set_arena_block_size(64 << 10)


def _bound_files(options: Options, config: RocksConfig) -> None:
    options.set_max_open_files(config.max_open_files)
    # RocksDB's own log and its list of files would otherwise grow for as long as the process lives.
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 << 20)
    options.set_max_manifest_file_size(16 << 20)


def _table_options(memory: RocksMemory) -> BlockBasedOptions:
    table = BlockBasedOptions()
    table.set_block_cache(memory.cache)
    table.set_bloom_filter(memory.config.bloom_bits_per_key, False)
    # A head and its neighbours: smaller blocks mean more index than they save in reads.
    table.set_block_size(16 << 10)
    # Index and filters count against the cache, so that memory stays bounded however much is stored.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    return table
