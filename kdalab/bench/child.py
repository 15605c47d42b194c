"""Run a command and write what it took: ``python -I -S child.py REPORT COMMAND...``.

The kernel hands the peak memory of a process on to what it starts (``execve`` keeps the larger of
the old and the new peak), so a command started from a large process looks at least as large. This
file is run as a process of its own, of some 10 MiB, and starts the command from there.
"""

import json
import os
import sys
import time


def main(report: str, command: list[str]) -> None:
    """Write {seconds, peak_rss in bytes (the command's or a child's of its own, the larger), exit
    code} of ``command`` to the file ``report``."""
    begin = time.perf_counter()
    child = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    found = {
        "seconds": time.perf_counter() - begin,
        "peak_rss": usage.ru_maxrss * 1024,
        "exit": os.waitstatus_to_exitcode(status),
    }
    with open(report, "w") as out:
        json.dump(found, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
