"""Backup and restore of queues (docs/operate/backup.md): `Queue.backup`, `Queue.restore`, `BackupSchedule`."""
