"""What a process used: time, processor, bytes written, memory; read from the kernel."""

import os
import time
from pathlib import Path


class Stopwatch:
    """Wall clock and processor time of this whole process, all threads included."""

    def __init__(self) -> None:
        """Starts."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._load = os.getloadavg()[0]

    def read(self) -> dict[str, float]:
        """Seconds since the start, and the machine's load average then."""
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
            "load_average": self._load,
        }


def used_bytes(directory: Path) -> dict[str, float]:
    """What lies in `directory` now; what this process sent to the disk, and its peak memory, since it began."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    written = Path("/proc/self/io").read_text().split("write_bytes:")[1].split()[0]
    status = Path("/proc/self/status").read_text()
    return {
        "disk_bytes": sum(path.stat().st_size for path in files),
        "written_bytes": int(written),
        "peak_memory_bytes": 1024 * int(status.split("VmHWM:")[1].split()[0]),
    }
