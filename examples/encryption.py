"""Encryption: a serializer encrypts data and results, and keys can be rotated. Needs `pip install cryptography`."""

import asyncio

from cryptography.fernet import Fernet, MultiFernet

from glidemq_py import JSON_SERIALIZER, Job, Queue, Worker
from glidemq_py.errors import JobDataError


class Encrypted:
    """Encrypt what JSON_SERIALIZER returns. The first key encrypts; every key decrypts."""

    def __init__(self, *keys: bytes) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def serialize(self, value: object) -> str:
        """Return the encrypted JSON of a value."""
        return self._fernet.encrypt(JSON_SERIALIZER.serialize(value).encode()).decode()

    def deserialize(self, text: str) -> object:
        """Return the value of an encrypted text."""
        return JSON_SERIALIZER.deserialize(self._fernet.decrypt(text).decode())


async def charge(job: Job) -> dict[str, str]:
    return {"receipt": f"{job.data['card'][-4:]}-{job.data['cents']}"}


async def main() -> None:
    old, new = Fernet.generate_key(), Fernet.generate_key()
    async with Queue("charges", serializer=Encrypted(old)) as queue:
        job = await queue.add("charge", {"card": "4111111111111111", "cents": 250})
    async with Queue("charges") as stranger:
        stored = await stranger.get_job(job.id)
        assert stored is not None
        try:
            print("readable without the key:", stored.data)
        except JobDataError:
            print("not readable without the key")
    rotated = Encrypted(new, old)
    async with Queue("charges", serializer=rotated) as queue, Worker("charges", charge, serializer=rotated) as worker:
        await worker.drain()
        done = await queue.get_job(job.id)
        assert done is not None
        print("result:", done.returnvalue)


if __name__ == "__main__":
    asyncio.run(main())
