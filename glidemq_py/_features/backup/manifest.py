"""The manifest of a backup: its contents, with the checksums of its parts and of itself."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from glidemq_py.errors import BackupError

__all__ = ["BackupInfo", "BackupPart", "new_backup_id", "parse_manifest", "time_of"]

FORMAT: Final = 1
_ID: Final = re.compile(r"(\d{8}T\d{6}\.\d{3})Z-[0-9a-f]{8}")
_TIME: Final = "%Y%m%dT%H%M%S.%f"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupPart:
    """A file of a backup.

    Attributes:
        name: name of the file.
        size: its size, bytes.
        sha256: its checksum, hexadecimal.
    """

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInfo:
    """A complete backup of a queue.

    Attributes:
        id: its id, which begins with the UTC time of its start; ids of one queue are in the order of their starts.
        queue: name of the queue.
        prefix: prefix of its keys.
        started: when reading began, epoch ms, by the server's clock.
        ended: when reading ended.
        jobs: number of jobs.
        keys: number of other keys, such as logs, groups and schedulers.
        size: size of the parts, bytes (compressed).
        last_id: highest generated job id.
        features: features of the queue that older builds reject, separated by commas.
        parts: the files.
    """

    id: str
    queue: str
    prefix: str
    started: int
    ended: int
    jobs: int
    keys: int
    size: int
    last_id: int
    features: str
    parts: tuple[BackupPart, ...]

    def to_json(self) -> bytes:
        """Return the manifest as stored."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, "sha256": _checksum(content)}, indent=1).encode()


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_manifest(text: bytes) -> BackupInfo:
    """Return the backup that a manifest describes.

    Raises:
        BackupError: If it is damaged, or written by a later release in another format.
    """
    try:
        content: dict[str, Any] = json.loads(text)
        found = content.pop("sha256")
        if content["format"] != FORMAT:
            raise BackupError(
                f"backup {content.get('id')!r} has format {content['format']!r}; this release reads format {FORMAT}"
            )
        if found != _checksum(content):
            raise BackupError(f"the manifest of backup {content.get('id')!r} is damaged: its checksum differs")
        del content["format"]
        parts = tuple(BackupPart(**part) for part in content.pop("parts"))
        return BackupInfo(**content, parts=parts)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"the manifest of a backup is damaged: {error}") from error


def new_backup_id(now: int) -> str:
    """Return a new id for a backup that starts at ``now`` (epoch ms)."""
    time = datetime.fromtimestamp(now // 1000, UTC).strftime("%Y%m%dT%H%M%S")
    return f"{time}.{now % 1000:03}Z-{secrets.token_hex(4)}"


def time_of(backup: str) -> int | None:
    """Return the start of a backup with this id, epoch ms; None if the text is no id of a backup."""
    found = _ID.fullmatch(backup)
    if found is None:
        return None
    return round(datetime.strptime(found[1], _TIME).replace(tzinfo=UTC).timestamp() * 1000)
