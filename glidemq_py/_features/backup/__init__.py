"""Backup and restore of queues (docs/operate/backup.md): `Queue.backups` and `BackupSchedule`."""
