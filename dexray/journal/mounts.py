"""Whether a file is on a network file system, as far as Linux's table of mounts tells.

Only kinds that are known to be networks count: what a mount does behind FUSE, or under a virtual machine, can't be seen
from here, and a warning that comes without reason is not read a second time.
"""

from __future__ import annotations

import os
import re

MOUNTS = "/proc/mounts"

_NETWORKS = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs"),
        *("fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.davfs", "fuse.gcsfuse"),
        *("fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone"),
        *("fuse.s3fs", "fuse.sshfs"),
    )
)


def network_file_system(path: str, mounts: str = MOUNTS) -> str:
    """The kind of network file system that `path` is on; "" for a local one, and where there is no such table.

    `path` is absolute and without links; `mounts` is a file in the format of /proc/mounts.
    """
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return ""
    found, kind = "", ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        place = _spelled_out(fields[1])
        # The last mount on a place is the one that is seen there.
        if _is_under(path, place) and len(place) >= len(found):
            found, kind = place, fields[2]
    return kind if kind in _NETWORKS else ""


def _is_under(path: str, place: str) -> bool:
    return place == "/" or path == place or path.startswith(place.rstrip("/") + os.sep)


def _spelled_out(field: str) -> str:
    """The table writes spaces and the like in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
